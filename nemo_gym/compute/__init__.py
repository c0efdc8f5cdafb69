"""CPU-heavy functions off the event loop, in processes that are killed when they overrun."""

from nemo_gym.compute.pool import Compute as Compute
