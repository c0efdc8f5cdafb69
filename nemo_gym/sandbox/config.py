"""Import path of the public NeMo Gym."""

from nemo_gym.sandbox.registry import resolve_provider_config as resolve_provider_config
from nemo_gym.sandbox.registry import resolve_provider_metadata as resolve_provider_metadata
