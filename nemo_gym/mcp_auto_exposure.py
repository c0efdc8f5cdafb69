"""Tools over MCP, under the path of the public NeMo Gym."""

from nemo_gym.compat.folder_functions import NEMO_GYM_MCP_SESSION_TOKEN_HEADER as NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.compat.folder_functions import TOKEN_HEADER as TOKEN_HEADER
from nemo_gym.compat.folder_functions import maybe_auto_expose as maybe_auto_expose
