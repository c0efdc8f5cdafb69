"""Episodes, under the path of the public NeMo Gym."""

from nemo_gym.compat.episodes import BaseEpisodeRequest as BaseEpisodeRequest
from nemo_gym.compat.episodes import BaseEpisodeResponse as BaseEpisodeResponse
from nemo_gym.compat.episodes import EpisodeFailure as EpisodeFailure
from nemo_gym.compat.episodes import EpisodeId as EpisodeId
from nemo_gym.compat.episodes import MaterializedTask as MaterializedTask
from nemo_gym.compat.episodes import TaskId as TaskId
from nemo_gym.compat.episodes import is_materialized_task_row as is_materialized_task_row
