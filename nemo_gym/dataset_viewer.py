"""The viewer under the names that the public NeMo Gym has for it."""

from nemo_gym.cli.view import viewer as main
from nemo_gym.viewer.server import ViewerConfig as JsonlDatasetViewerConfig

__all__ = ["JsonlDatasetViewerConfig", "main"]
