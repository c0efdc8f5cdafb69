"""Images in prompts, under the path of the public NeMo Gym."""

from nemo_gym.compat.folder_functions import build_image_input as build_image_input
