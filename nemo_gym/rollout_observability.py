"""What agents observe, under the path that they import it from."""

from nemo_gym.analysis.observability import AgentEpisode as AgentEpisode
from nemo_gym.analysis.observability import AgentInvocation as AgentInvocation
from nemo_gym.analysis.observability import AgentObservationBundle as AgentObservationBundle
from nemo_gym.analysis.observability import ContextCompactionObservation as ContextCompactionObservation
from nemo_gym.analysis.observability import ModelCallRef as ModelCallRef
from nemo_gym.analysis.observability import ObservationGap as ObservationGap
from nemo_gym.analysis.observability import SandboxObservation as SandboxObservation
from nemo_gym.analysis.observability import ToolCallObservation as ToolCallObservation
from nemo_gym.analysis.observability import TrajectoryRecord as TrajectoryRecord
from nemo_gym.analysis.observability import TrajectoryToolCall as TrajectoryToolCall
from nemo_gym.analysis.observability import TrajectoryTurn as TrajectoryTurn
