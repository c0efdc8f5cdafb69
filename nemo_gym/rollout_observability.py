"""What agents observe, under the path that they import it from."""

from nemo_gym.analysis.observations import AgentEpisode as AgentEpisode
from nemo_gym.analysis.observations import AgentInvocation as AgentInvocation
from nemo_gym.analysis.observations import AgentObservationBundle as AgentObservationBundle
from nemo_gym.analysis.observations import ContextCompactionObservation as ContextCompactionObservation
from nemo_gym.analysis.observations import ModelCallRef as ModelCallRef
from nemo_gym.analysis.observations import ObservationGap as ObservationGap
from nemo_gym.analysis.observations import SandboxObservation as SandboxObservation
from nemo_gym.analysis.observations import ToolCallObservation as ToolCallObservation
from nemo_gym.analysis.observations import TrajectoryRecord as TrajectoryRecord
from nemo_gym.analysis.observations import TrajectoryToolCall as TrajectoryToolCall
from nemo_gym.analysis.observations import TrajectoryTurn as TrajectoryTurn
from nemo_gym.server.model_call_capture import ModelCallRecord as ModelCallRecord
