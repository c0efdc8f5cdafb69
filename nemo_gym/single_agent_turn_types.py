"""Episodes of one turn, under the path of the public NeMo Gym."""

from nemo_gym.compat.episodes import SingleAgentTurnFailure as SingleAgentTurnFailure
from nemo_gym.compat.episodes import SingleAgentTurnRequest as SingleAgentTurnRequest
from nemo_gym.compat.episodes import SingleAgentTurnResponse as SingleAgentTurnResponse
from nemo_gym.compat.episodes import SingleAgentTurnResult as SingleAgentTurnResult
from nemo_gym.compat.episodes import SingleAgentTurnTaskInput as SingleAgentTurnTaskInput
