"""What public folders import, and the members and signatures that they rely on: one table of names."""

import importlib
import inspect
from typing import Any

import pytest

NAMES = {
    "": (
        "AggregateMetrics AggregateMetricsRequest BaseMultiRewardVerifyResponse BaseResourcesServerConfig "
        "BaseResponsesAPIAgentConfig BaseResponsesAPIModelConfig BaseRunRequest BaseRunServerInstanceConfig "
        "BaseSeedSessionRequest BaseSeedSessionResponse BaseServerConfig BaseVerifyRequest BaseVerifyResponse Domain "
        "ModelServerRef NeMoGymAsyncOpenAI NeMoGymChatCompletion NeMoGymChatCompletionCreateParamsNonStreaming "
        "NeMoGymResponse NeMoGymResponseCreateParamsNonStreaming ReverifyMode SESSION_ID_KEY ServerClient "
        "SimpleResourcesServer SimpleResponsesAPIAgent SimpleResponsesAPIModel WORKING_DIR get_response_json "
        "raise_for_status"
    ),
    "base_resources_server": (
        "AggregateMetrics AggregateMetricsRequest BaseMultiRewardVerifyResponse Body NEMO_GYM_MCP_METADATA_KEY "
        "ReverifyMode normalize_tool_name"
    ),
    "base_responses_api_agent": "AggregateMetrics AggregateMetricsRequest Body",
    "base_responses_api_model": (
        "Body CaptureStore ModelCallRecord aggregate_model_call_metrics merge_model_call_capture_into_record "
        "read_model_call_records"
    ),
    "cli": "GlobalConfigDictParserConfig RunHelper",
    "config_types": (
        "AggregateMetrics AggregateMetricsRequest AlmostServerError ConfigError ConfigInterpolationError "
        "ConfigMissingValuesError ConfigPathNotFoundError InheritPathNotFoundError MalformedConfigPathsError "
        "NoServerInstancesError OmegaConf ROLLOUT_PATH_PREFIX ServerRefNotFoundError TOKEN_CAPTURE_PATH_SEGMENT"
    ),
    "global_config": (
        "AGENT_REF_KEY_NAME ATTEMPT_INDEX_KEY_NAME CACHE_DIR_KEY_NAME RESPONSES_CREATE_PARAMS_KEY_NAME "
        "RESPONSE_KEY_NAME RESULTS_DIR_KEY_NAME ROLLOUT_ID_KEY_NAME ROLLOUT_INDEX_KEY_NAME SKILLS_REF_KEY_NAME "
        "TASK_INDEX_KEY_NAME get_first_server_config_dict get_hf_token maybe_get_global_config_dict"
    ),
    "judge": "JudgeError call_judge judge_failsafe reraise_judge_errors",
    "openai_utils": (
        "NeMoGymComputerCallOutput NeMoGymImageGenerationCall NeMoGymLocalShellCall NeMoGymLocalShellCallOutput "
        "NeMoGymMcpApprovalResponse NeMoGymResponseCodeInterpreterToolCall NeMoGymResponseComputerToolCall "
        "NeMoGymResponseCustomToolCall NeMoGymResponseCustomToolCallOutput NeMoGymResponseFileSearchToolCall "
        "NeMoGymResponseFunctionWebSearch NeMoGymResponseInput NeMoGymResponseInputText "
        "NeMoGymResponseInputTokensDetails NeMoGymResponseMcpApprovalRequest NeMoGymResponseMcpCall "
        "NeMoGymResponseMcpListTools NeMoGymResponseOutputTokensDetails NeMoGymResponseUsage RATE_LIMIT_ERROR_CODES "
        "REQUIRED_TOKEN_METADATA_FIELDS RETRY_ERROR_CODES TOKEN_METADATA_FIELDS TokenIDLogProbMixin "
        "accumulate_response_usage training_variant_of"
    ),
    "profiling": "Profiler",
    "prompt": (
        "PromptConfig apply_prompt_to_row fill_prompt load_prompt_config materialize_prompts "
        "validate_prompt_compatibility"
    ),
    "responses_converter": (
        "ResponsesConverter ResponsesConverterState VLLMConverter VLLMConverterResponsesToChatCompletionsState "
        "_usage_detail split_responses_input_output_items"
    ),
    "reward_profile": (
        "AggregateMetricsMixin RewardProfiler add_avg_sample_std_dev compute_aggregate_metrics "
        "compute_pass_majority_metrics compute_subset_metrics highest_k_metrics"
    ),
    "rollout_collection": (
        "NG_FAILURE_CLASS_KEY NG_NO_PERSIST_KEY NG_TERMINAL_KEY RolloutCollectionHelper _get_max_rollout_attempts "
        "failures_path_for"
    ),
    "rollout_correlation": (
        "RolloutContextMiddleware current_rollout_id maybe_rollout_id_from_run_body rollout_context"
    ),
    "rollout_observability": (
        "AgentEpisode AgentInvocation AgentObservationBundle ContextCompactionObservation ModelCallRecord "
        "ModelCallRef ObservationGap SandboxObservation ToolCallObservation TrajectoryRecord TrajectoryToolCall "
        "TrajectoryTurn"
    ),
    "sandbox": (
        "ApptainerProvider AsyncSandbox DockerCreateConfig DockerProvider ExecResult Sandbox SandboxCreateError "
        "SandboxCreateVerificationError SandboxEndpoint SandboxExecResult SandboxHandle SandboxPtyError "
        "SandboxResources SandboxSpec SandboxStatus create_provider get_provider_class list_providers "
        "register_provider resolve_provider_config resolve_provider_metadata rewrite_image"
    ),
    "sandbox.config": "resolve_provider_config resolve_provider_metadata",
    "sandbox.utils": "rewrite_image",
    "server_utils": (
        "BaseServerConfig HEAD_SERVER_KEY_NAME apply_rollout_prefix get_first_server_config_dict get_server_url "
        "is_global_aiohttp_client_request_debug_enabled is_nemo_gym_fastapi_entrypoint is_nemo_gym_fastapi_worker "
        "rollout_path_prefix setup_server_client"
    ),
    "skills": "SkillsRef load_skill_directory stage_skills",
}
MEMBERS = {
    "base_resources_server:SimpleResourcesServer": (
        "aggregate_metrics compute_metrics get_key_metrics get_session_middleware_key mcp_allowed_tools_for_session "
        "mcp_tools normalize_tool_name run_webserver seed_session setup_exception_middleware setup_profiling "
        "setup_session_middleware setup_webserver verify"
    ),
    "base_responses_api_agent:SimpleResponsesAPIAgent": (
        "_model_call_capture_enabled _token_id_capture_enabled aggregate_metrics base_url_for_run compute_metrics "
        "get_key_metrics resolve_model_base_url rollout_id_from_run url_path_for_request url_path_for_run"
    ),
    "openai_utils:NeMoGymAsyncOpenAI": "create_chat_completion create_completion create_response create_tokenize",
    "reward_profile:RewardProfiler": (
        "align_rows_and_results prepare_for_serialization profile_completion_summary profile_from_data write_to_disk"
    ),
    "sandbox:AsyncSandbox": "connect download endpoint exec serialize start status stop upload",
    "sandbox:Sandbox": "download endpoint exec serialize start status stop upload",
    "server_utils:ServerClient": (
        "_build_server_base_url get load_from_global_config load_head_server_config poll_for_status post request"
    ),
}
PARAMETERS = {
    "judge:call_judge": "server_client server_name url_path json response_model",
    "openai_utils:accumulate_response_usage": "total additional",
    "prompt:apply_prompt_to_row": "row config",
    "prompt:fill_prompt": "config row",
    "reward_profile:add_avg_sample_std_dev": "metrics all_score_dicts score_names max_k",
    "reward_profile:compute_aggregate_metrics": "verify_responses compute_metrics_fn get_key_metrics_fn",
    "reward_profile:compute_pass_majority_metrics": "tasks score_fn answer_key",
    "reward_profile:compute_subset_metrics": "tasks subset_key score_fn answer_key",
    "reward_profile:highest_k_metrics": "agent_metrics pattern score_names exclude_names",
    "rollout_collection:RolloutCollectionHelper.run_examples": "self examples head_server_config semaphore",
    "sandbox:AsyncSandbox.exec": "self command cwd env timeout_s user",
    "server_utils:apply_rollout_prefix": "base_url rollout_id token_capture",
    "server_utils:rollout_path_prefix": "rollout_id token_capture",
    "server_utils:setup_server_client": "head_server_config",
}
"""The first parameters, by name: callers pass them by name or by place."""


def module(name: str) -> Any:
    return importlib.import_module(f"nemo_gym.{name}" if name else "nemo_gym")


@pytest.mark.parametrize("place", NAMES)
def test_every_name_resolves(place: str) -> None:
    assert [name for name in NAMES[place].split() if getattr(module(place), name, None) is None] == []


@pytest.mark.parametrize("place", MEMBERS)
def test_every_member_is_there(place: str) -> None:
    where, _, name = place.partition(":")
    assert [member for member in MEMBERS[place].split() if not hasattr(getattr(module(where), name), member)] == []


@pytest.mark.parametrize("place", PARAMETERS)
def test_every_function_takes_its_parameters(place: str) -> None:
    where, _, path = place.partition(":")
    found = module(where)
    for name in path.split("."):
        found = getattr(found, name)
    wanted = PARAMETERS[place].split()
    assert [*inspect.signature(found).parameters][: len(wanted)] == wanted


def test_errors_of_configurations_are_of_one_family() -> None:
    types = module("config_types")
    kinds = [name for name in NAMES["config_types"].split() if name.endswith("Error")]
    assert all(issubclass(getattr(types, name), types.ConfigError) for name in kinds)
    assert issubclass(types.ServerRefNotFoundError, ValueError)
