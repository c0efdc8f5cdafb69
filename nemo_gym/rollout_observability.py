"""What agents observe, under the path that they import it from."""

from nemo_gym.compat.observations import *
from nemo_gym.gateway.model_call_capture import ModelCallRecord as ModelCallRecord
