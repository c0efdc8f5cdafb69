"""Import path of the public NeMo Gym."""

from nemo_gym.sandbox.contract import CPU_CAP_ENV_VARS as CPU_CAP_ENV_VARS
from nemo_gym.sandbox.contract import cpu_cap_env as cpu_cap_env
from nemo_gym.sandbox.contract import rewrite_image as rewrite_image
