"""Captured tokens, under the path of the public NeMo Gym."""

from nemo_gym.compat.token_capture import CaptureContext as CaptureContext
from nemo_gym.compat.token_capture import FileLineageStore as FileLineageStore
from nemo_gym.compat.token_capture import InMemoryLineageStore as InMemoryLineageStore
from nemo_gym.compat.token_capture import LineageResolver as LineageResolver
from nemo_gym.compat.token_capture import TokenCaptureStore as TokenCaptureStore
from nemo_gym.compat.token_capture import TokenSink as TokenSink
from nemo_gym.compat.token_capture import TokenSource as TokenSource
from nemo_gym.compat.token_capture import current_capture_context as current_capture_context
from nemo_gym.compat.token_capture import reset_token_sink as reset_token_sink
from nemo_gym.compat.token_capture import resolve_parent as resolve_parent
from nemo_gym.compat.token_capture import set_token_sink as set_token_sink
