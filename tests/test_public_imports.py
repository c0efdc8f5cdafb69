"""The names that outside code imports resolve, and importing them does not drag in what they do not need."""

import importlib
import subprocess
import sys

import pytest

PUBLIC = {
    "nemo_gym": "ROOT_DIR PARENT_DIR CACHE_DIR RESULTS_DIR __version__ __shortversion__",
    "nemo_gym.base_resources_server": (
        "BaseResourcesServer BaseResourcesServerConfig BaseRunRequest BaseSeedSessionRequest BaseSeedSessionResponse "
        "BaseVerifyRequest BaseVerifyResponse Body SimpleResourcesServer SessionState tool"
    ),
    "nemo_gym.base_responses_api_agent": (
        "BaseResponsesAPIAgent BaseResponsesAPIAgentConfig Body SimpleResponsesAPIAgent"
    ),
    "nemo_gym.base_responses_api_model": (
        "BaseResponsesAPIModel BaseResponsesAPIModelConfig Body SimpleResponsesAPIModel"
    ),
    "nemo_gym.cli": "RunHelper GlobalConfigDictParserConfig RunConfig ServerInstanceDisplayConfig run test test_all "
    "dev_test init_resources_server dump_config display_help version status stop main",
    "nemo_gym.config_types": (
        "AgentServerRef BaseNeMoGymCLIConfig BaseRunServerConfig BaseRunServerInstanceConfig BaseRunServerTypeConfig "
        "BaseServerConfig DatasetConfig Domain ModelServerRef ResourcesServerInstanceConfig ResourcesServerRef "
        "ResourcesServerTypeConfig ResponsesAPIAgentServerInstanceConfig ResponsesAPIAgentServerTypeConfig "
        "ResponsesAPIModelServerInstanceConfig ResponsesAPIModelServerTypeConfig is_server_ref "
        "maybe_get_server_instance_config"
    ),
    "nemo_gym.dataset_viewer": "JsonlDatasetViewerConfig main",
    "nemo_gym.global_config": (
        "DEFAULT_HEAD_SERVER_PORT GlobalConfigDictParser GlobalConfigDictParserConfig HEAD_SERVER_KEY_NAME "
        "NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME NEMO_GYM_RESERVED_TOP_LEVEL_KEYS "
        "POLICY_API_KEY_KEY_NAME POLICY_BASE_URL_KEY_NAME POLICY_MODEL_NAME_KEY_NAME TASK_INDEX_KEY_NAME "
        "find_open_port get_first_server_config_dict get_global_config_dict set_global_config_dict"
    ),
    "nemo_gym.openai_utils": (
        "EndpointPool EndpointSettings JsonObject NeMoGymAsyncOpenAI NeMoGymChatCompletion NeMoGymResponse "
        "NeMoGymResponseCreateParamsNonStreaming RESPONSES_TO_TRAIN chat_params encode response_from_completion"
    ),
    "nemo_gym.profile": "ProfileConfig RewardProfilingMetrics profile",
    "nemo_gym.rollout_collection": "RolloutCollectionConfig RolloutCollectionHelper collect_rollouts",
    "nemo_gym.training": (
        "FlatTokens Group ModelCall PrefixBreak Segment TokenTrace TokenTraceError TrainingSample VIEWS columns "
        "group_advantages make_groups nemo_rl_sample samples_of skyrl_sample slime_sample trace_of trl_sample "
        "verl_sample"
    ),
    "nemo_gym.server_utils": (
        "BaseRunServerInstanceConfig BaseServer BaseServerConfig ClientResponse Compute CookieJar "
        "DEFAULT_HEAD_SERVER_PORT DictConfig HttpClient PeerResponse ServerReply find timeout "
        "GlobalAIOHTTPAsyncClientConfig HEAD_SERVER_KEY_NAME HeadServer MAX_NUM_TRIES OmegaConf SESSION_ID_KEY "
        "ServerClient ServerInstanceDisplayConfig ServerStatus SimpleServer get_global_aiohttp_client "
        "get_global_config_dict get_response_json global_aiohttp_client_exit raise_for_status request"
    ),
    "nemo_gym.dataset_orchestrator": (
        "upload_jsonl_dataset_to_hf_maybe_delete delete_jsonl_dataset_from_gitlab upload_jsonl_dataset_to_hf_cli "
        "upload_jsonl_dataset_to_hf_and_delete_gitlab_cli download_jsonl_dataset_from_hf_cli "
        "delete_jsonl_dataset_from_gitlab_cli"
    ),
    "nemo_gym.gitlab_utils": (
        "MLFlowConfig UploadJsonlDatasetGitlabConfig DownloadJsonlDatasetGitlabConfig upload_jsonl_dataset_cli "
        "download_jsonl_dataset_cli"
    ),
    "nemo_gym.hf_utils": (
        "HfApi UploadJsonlDatasetHuggingFaceConfig UploadJsonlDatasetHuggingFaceMaybeDeleteConfig "
        "DownloadJsonlDatasetHuggingFaceConfig upload_jsonl_dataset download_jsonl_dataset"
    ),
    "nemo_gym.train_data_utils": "AvgMinMax TrainDataProcessor TrainDataProcessorConfig prepare_data",
}
"""Those of the first releases; `tests/public/test_surface.py` has those of today."""

NAMES = [(module, name) for module, names in PUBLIC.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_public_name_resolves(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("nemo_gym", {"pydantic", "aiohttp", "omegaconf", "fastapi", "asyncio"}),
        ("nemo_gym.cli", {"pydantic", "aiohttp", "omegaconf", "fastapi", "hydra"}),
        ("nemo_gym.base_resources_server", {"fastapi", "omegaconf", "hydra", "ray", "openai"}),
        ("nemo_gym.server_utils", {"fastapi", "omegaconf", "hydra", "ray", "openai", "aiohttp"}),
        ("nemo_gym.runtime.stack", {"fastapi", "omegaconf", "hydra", "ray", "openai"}),
        ("nemo_gym.runtime.launcher", {"fastapi", "ray", "openai"}),
    ],
)
def test_an_import_brings_in_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    program = f"import sys, {module}; print(*(set(sys.modules) & {unwanted!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
