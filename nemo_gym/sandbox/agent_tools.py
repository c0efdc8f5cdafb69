"""Programs in sandboxes, under the path of the public NeMo Gym."""

from nemo_gym.common.lazy_exports import lazy_attributes

__getattr__ = lazy_attributes(__name__)
