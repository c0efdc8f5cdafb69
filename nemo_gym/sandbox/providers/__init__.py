"""Providers of sandboxes, under the path of the public NeMo Gym."""

from nemo_gym.sandbox.registry import create_provider as create_provider
from nemo_gym.sandbox.registry import get_provider_class as get_provider_class
from nemo_gym.sandbox.registry import list_providers as list_providers
from nemo_gym.sandbox.registry import register_provider as register_provider
