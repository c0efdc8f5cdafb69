"""NeMo Gym: reinforcement-learning environments for language models."""

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.common.paths import PACKAGE_DIR as ROOT_DIR
from nemo_gym.common.paths import PARENT_DIR, WORKING_DIR

__version__ = "0.2.0rc0"
__shortversion__ = "0.2.0"

CACHE_DIR = PARENT_DIR / "cache"
RESULTS_DIR = PARENT_DIR / "results"

__all__ = ["CACHE_DIR", "PARENT_DIR", "RESULTS_DIR", "ROOT_DIR", "WORKING_DIR", "__shortversion__", "__version__"]

_PUBLIC = {
    "base_resources_server": (
        *("BaseMultiRewardVerifyResponse", "BaseResourcesServerConfig", "BaseRunRequest", "BaseSeedSessionRequest"),
        *("BaseSeedSessionResponse", "BaseVerifyRequest", "BaseVerifyResponse", "ReverifyMode"),
        "SimpleResourcesServer",
    ),
    "base_responses_api_agent": ("BaseResponsesAPIAgentConfig", "SimpleResponsesAPIAgent"),
    "base_responses_api_model": ("BaseResponsesAPIModelConfig", "SimpleResponsesAPIModel"),
    "config_types": (
        *("AggregateMetrics", "AggregateMetricsRequest", "BaseRunServerInstanceConfig", "BaseServerConfig"),
        *("Domain", "ModelServerRef"),
    ),
    "openai_utils": (
        *("NeMoGymAsyncOpenAI", "NeMoGymChatCompletion", "NeMoGymChatCompletionCreateParamsNonStreaming"),
        *("NeMoGymResponse", "NeMoGymResponseCreateParamsNonStreaming"),
    ),
    "server_utils": ("SESSION_ID_KEY", "ServerClient", "get_response_json", "raise_for_status"),
}
"""Names that can be imported from the package itself. They are loaded at first use."""

__getattr__ = lazy_attributes(
    __name__, {name: f"{__name__}.{module}:{name}" for module, names in _PUBLIC.items() for name in names}
)
