"""CPU-heavy functions off the event loop, in processes that are killed when they overrun."""

from nemo_gym.compute.pool import LONG_TEXT as LONG_TEXT
from nemo_gym.compute.pool import TIMED_OUT as TIMED_OUT
from nemo_gym.compute.pool import Compute as Compute
from nemo_gym.compute.pool import ComputeError as ComputeError
from nemo_gym.compute.pool import LimitExceededError as LimitExceededError
from nemo_gym.compute.pool import TimedOut as TimedOut
