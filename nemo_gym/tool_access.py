"""Tools of agent sessions, under the path of the public NeMo Gym."""

from nemo_gym.compat.tool_access import DirectHTTPToolAccess as DirectHTTPToolAccess
from nemo_gym.compat.tool_access import MCPStreamableHTTPConnection as MCPStreamableHTTPConnection
from nemo_gym.compat.tool_access import MCPToolAccess as MCPToolAccess
from nemo_gym.compat.tool_access import ToolAccess as ToolAccess
