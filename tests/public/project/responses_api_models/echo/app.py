import time

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, split_responses_input_output_items


class EchoConfig(BaseResponsesAPIModelConfig):
    model: str
    verdict: str = "polite"


class Echo(SimpleResponsesAPIModel):
    config: EchoConfig

    def model_post_init(self, context):
        self._converter = ResponsesConverter(return_token_id_information=False)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        params = self._converter.responses_to_chat_completion_create_params(body)
        _, written = split_responses_input_output_items(body.input if isinstance(body.input, list) else [])
        completion = await self.chat_completions(params.model_copy(update={"n": len(written)}))
        return self._converter.chat_completion_to_response(body, completion)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        message = {"role": "assistant", "content": "<think>hm</think>It is 7."}
        if not body.tools:
            message["content"] = self.config.verdict
        elif not body.n:
            called = {"name": "add", "arguments": '{"name": "apple"}'}
            message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": called}]}
        elif body.n < 3:
            called = {"name": "add", "arguments": '{"name": "pear"}'}
            message = {"role": "assistant", "tool_calls": [{"id": "c2", "type": "function", "function": called}]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return NeMoGymChatCompletion(
            id="c", created=int(time.time()), model=self.config.model, choices=[choice], usage=usage,
            object="chat.completion",
        )


if __name__ == "__main__":
    Echo.run_webserver()
