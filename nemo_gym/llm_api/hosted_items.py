"""The base of all items, and the items of tools that a model provider runs itself. Those are kept as they came."""

from nemo_gym.llm_api.base import TypedWireModel


class ResponseItem(TypedWireModel):
    """The base of everything that `input` and `output` hold."""


class NeMoGymOtherItem(ResponseItem):
    """An item of a type not modelled here (`web_search_call`, ...), kept as it came."""

    type: str


class NeMoGymResponseFileSearchToolCall(NeMoGymOtherItem):
    type: str = "file_search_call"


class NeMoGymResponseFunctionWebSearch(NeMoGymOtherItem):
    type: str = "web_search_call"


class NeMoGymResponseComputerToolCall(NeMoGymOtherItem):
    type: str = "computer_call"


class NeMoGymComputerCallOutput(NeMoGymOtherItem):
    type: str = "computer_call_output"


class NeMoGymImageGenerationCall(NeMoGymOtherItem):
    type: str = "image_generation_call"


class NeMoGymResponseCodeInterpreterToolCall(NeMoGymOtherItem):
    type: str = "code_interpreter_call"


class NeMoGymLocalShellCall(NeMoGymOtherItem):
    type: str = "local_shell_call"


class NeMoGymLocalShellCallOutput(NeMoGymOtherItem):
    type: str = "local_shell_call_output"


class NeMoGymResponseCustomToolCall(NeMoGymOtherItem):
    type: str = "custom_tool_call"


class NeMoGymResponseCustomToolCallOutput(NeMoGymOtherItem):
    type: str = "custom_tool_call_output"


class NeMoGymResponseMcpCall(NeMoGymOtherItem):
    type: str = "mcp_call"


class NeMoGymResponseMcpListTools(NeMoGymOtherItem):
    type: str = "mcp_list_tools"


class NeMoGymResponseMcpApprovalRequest(NeMoGymOtherItem):
    type: str = "mcp_approval_request"


class NeMoGymMcpApprovalResponse(NeMoGymOtherItem):
    type: str = "mcp_approval_response"


HOSTED_ITEMS: dict[str, type[NeMoGymOtherItem]] = {
    str(kind.model_fields["type"].default): kind for kind in NeMoGymOtherItem.__subclasses__()
}
"""Each type of these items, and its class."""
