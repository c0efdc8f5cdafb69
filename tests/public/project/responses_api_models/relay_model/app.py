"""Keeps a client per session, converts between the two dialects, retries on its own."""
from time import time
from typing import Any, Dict, List, Optional, Union
from uuid import uuid4

from aiohttp.client_exceptions import ClientResponseError
from fastapi import Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    RATE_LIMIT_ERROR_CODES,
    RETRY_ERROR_CODES,
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import VLLMConverter
from nemo_gym.server_utils import SESSION_ID_KEY, is_nemo_gym_fastapi_worker


class RelayModelConfig(BaseResponsesAPIModelConfig):
    base_url: Union[str, List[str]]
    api_key: str
    model: str
    return_token_id_information: bool = False
    uses_reasoning_parser: bool = True
    replace_developer_role_with_system: bool = False
    chat_template_kwargs: Optional[Dict[str, Any]] = None
    extra_body: Optional[Dict[str, Any]] = None

    def model_post_init(self, context):
        if isinstance(self.base_url, str):
            self.base_url = [self.base_url]
        return super().model_post_init(context)


class RelayModel(SimpleResponsesAPIModel):
    config: RelayModelConfig

    def model_post_init(self, context):
        self._clients = [
            NeMoGymAsyncOpenAI(base_url=base_url, api_key=self.config.api_key) for base_url in self.config.base_url
        ]
        self._session_id_to_client: Dict[str, NeMoGymAsyncOpenAI] = dict()
        self._converter = VLLMConverter(return_token_id_information=self.config.return_token_id_information)
        return super().model_post_init(context)

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        chat_completion_create_params = self._converter.responses_to_chat_completion_create_params(body)
        body.model = self.config.model
        chat_completion_response = await self.chat_completions(request, chat_completion_create_params)
        choice = chat_completion_response.choices[0]
        response_output = self._converter.postprocess_chat_response(choice)
        response_output_dicts = [item.model_dump() for item in response_output]
        return NeMoGymResponse(
            id=f"resp_{uuid4().hex}",
            created_at=int(time()),
            model=body.model,
            object="response",
            output=response_output_dicts,
            tool_choice=body.tool_choice if "tool_choice" in body else "auto",
            parallel_tool_calls=body.parallel_tool_calls,
            tools=body.tools,
            temperature=body.temperature,
            top_p=body.top_p,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata,
            text=body.text,
            usage=self._usage(chat_completion_response),
        )

    def _usage(self, completion):
        if completion.usage is None:
            return None
        return {
            "input_tokens": completion.usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": None},
            "output_tokens": completion.usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": None},
            "total_tokens": completion.usage.total_tokens,
        }

    async def chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        body_dict = body.model_dump(exclude_unset=True)
        body_dict["model"] = self.config.model
        session_id = request.session[SESSION_ID_KEY]
        if session_id not in self._session_id_to_client:
            self._session_id_to_client[session_id] = self._clients[len(self._session_id_to_client) % len(self._clients)]
        client = self._session_id_to_client[session_id]
        try:
            completion = await client.create_chat_completion(**body_dict)
        except ClientResponseError as e:
            if e.status in (*RATE_LIMIT_ERROR_CODES, *RETRY_ERROR_CODES):
                raise
            assert b"context length" in e.response_content
            completion = {
                "id": "c",
                "created": int(time()),
                "model": self.config.model,
                "object": "chat.completion",
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None}}
                ],
            }
        return NeMoGymChatCompletion.model_validate(completion)


if __name__ == "__main__":
    RelayModel.run_webserver()
elif is_nemo_gym_fastapi_worker():
    app = RelayModel.run_webserver()
