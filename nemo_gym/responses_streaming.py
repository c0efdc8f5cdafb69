"""Streamed requests, under the path of the public NeMo Gym."""

from nemo_gym.compat.model_server_functions import (
    sanitize_streaming_responses_body as sanitize_streaming_responses_body,
)
