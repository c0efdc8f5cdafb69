"""NeMo Gym: reinforcement-learning environments for language models.

The names below are what authors of servers and scripts import most. Importing the package loads none of them."""

from typing import TYPE_CHECKING

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.common.paths import PACKAGE_DIR
from nemo_gym.common.paths import PARENT_DIR as PARENT_DIR
from nemo_gym.common.paths import WORKING_DIR as WORKING_DIR

if TYPE_CHECKING:
    from nemo_gym.base_resources_server import BaseMultiRewardVerifyResponse as BaseMultiRewardVerifyResponse
    from nemo_gym.base_resources_server import BaseResourcesServerConfig as BaseResourcesServerConfig
    from nemo_gym.base_resources_server import BaseRunRequest as BaseRunRequest
    from nemo_gym.base_resources_server import BaseSeedSessionRequest as BaseSeedSessionRequest
    from nemo_gym.base_resources_server import BaseSeedSessionResponse as BaseSeedSessionResponse
    from nemo_gym.base_resources_server import BaseVerifyRequest as BaseVerifyRequest
    from nemo_gym.base_resources_server import BaseVerifyResponse as BaseVerifyResponse
    from nemo_gym.base_resources_server import Environment as Environment
    from nemo_gym.base_resources_server import ReverifyMode as ReverifyMode
    from nemo_gym.base_resources_server import Score as Score
    from nemo_gym.base_resources_server import SessionState as SessionState
    from nemo_gym.base_resources_server import SimpleResourcesServer as SimpleResourcesServer
    from nemo_gym.base_resources_server import tool as tool
    from nemo_gym.base_responses_api_agent import Agent as Agent
    from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig as BaseResponsesAPIAgentConfig
    from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent as SimpleResponsesAPIAgent
    from nemo_gym.base_responses_api_agent import ToolCallingAgent as ToolCallingAgent
    from nemo_gym.base_responses_api_agent import ToolCallingAgentConfig as ToolCallingAgentConfig
    from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig as BaseResponsesAPIModelConfig
    from nemo_gym.base_responses_api_model import Model as Model
    from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel as SimpleResponsesAPIModel
    from nemo_gym.client.load_balancer import NeMoGymAsyncOpenAI as NeMoGymAsyncOpenAI
    from nemo_gym.client.reply import ServerReply as ServerReply
    from nemo_gym.client.reply import get_response_json as get_response_json
    from nemo_gym.client.reply import raise_for_status as raise_for_status
    from nemo_gym.client.server_client import CookieJar as CookieJar
    from nemo_gym.client.server_client import ServerClient as ServerClient
    from nemo_gym.config.types import BaseRunServerInstanceConfig as BaseRunServerInstanceConfig
    from nemo_gym.config.types import BaseServerConfig as BaseServerConfig
    from nemo_gym.config.types import Domain as Domain
    from nemo_gym.config.types import ModelServerRef as ModelServerRef
    from nemo_gym.config.types import ResourcesServerRef as ResourcesServerRef
    from nemo_gym.evaluation.judge_check import acheck_judge as acheck_judge
    from nemo_gym.evaluation.judge_check import check_judge as check_judge
    from nemo_gym.evaluation.models import Scripted as Scripted
    from nemo_gym.evaluation.result import Evaluation as Evaluation
    from nemo_gym.evaluation.result import Rollout as Rollout
    from nemo_gym.evaluation.run import aevaluate as aevaluate
    from nemo_gym.evaluation.run import collect as collect
    from nemo_gym.evaluation.run import evaluate as evaluate
    from nemo_gym.judged_environment import JudgedConfig as JudgedConfig
    from nemo_gym.judged_environment import JudgedEnvironment as JudgedEnvironment
    from nemo_gym.judged_environment import JudgedVerifyRequest as JudgedVerifyRequest
    from nemo_gym.llm_api.base import JsonObject as JsonObject
    from nemo_gym.llm_api.chat import NeMoGymChatCompletion as NeMoGymChatCompletion
    from nemo_gym.llm_api.chat import (
        NeMoGymChatCompletionCreateParamsNonStreaming as NeMoGymChatCompletionCreateParamsNonStreaming,
    )
    from nemo_gym.llm_api.responses import NeMoGymResponse as NeMoGymResponse
    from nemo_gym.llm_api.responses import (
        NeMoGymResponseCreateParamsNonStreaming as NeMoGymResponseCreateParamsNonStreaming,
    )
    from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
    from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest
    from nemo_gym.server.session import SESSION_ID_KEY as SESSION_ID_KEY
    from nemo_gym.verdicts import Criterion as Criterion
    from nemo_gym.verdicts import JsonVerdict as JsonVerdict
    from nemo_gym.verdicts import Labels as Labels
    from nemo_gym.verdicts import Preference as Preference
    from nemo_gym.verdicts import Rubric as Rubric
    from nemo_gym.verdicts import Scale as Scale

__version__ = "0.2.0rc0"
__shortversion__ = "0.2.0"

ROOT_DIR = PACKAGE_DIR
CACHE_DIR = PARENT_DIR / "cache"
RESULTS_DIR = PARENT_DIR / "results"

__getattr__ = lazy_attributes(__name__)
