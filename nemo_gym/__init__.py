"""NeMo Gym: reinforcement-learning environments for language models."""

from nemo_gym.common.paths import PACKAGE_DIR as ROOT_DIR
from nemo_gym.common.paths import PARENT_DIR

__version__ = "0.2.0rc0"
__shortversion__ = "0.2.0"

CACHE_DIR = PARENT_DIR / "cache"
RESULTS_DIR = PARENT_DIR / "results"

__all__ = ["CACHE_DIR", "PARENT_DIR", "RESULTS_DIR", "ROOT_DIR", "__shortversion__", "__version__"]
