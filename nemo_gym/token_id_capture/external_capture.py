"""Captured tokens, under the path of the public NeMo Gym."""

from nemo_gym.compat.token_capture import ExternalCaptureHandler as ExternalCaptureHandler
from nemo_gym.compat.token_capture import VLLMWorkerCaptureHandler as VLLMWorkerCaptureHandler
from nemo_gym.compat.token_capture import make_external_capture_handler as make_external_capture_handler
