from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

from fastapi.testclient import TestClient
from pytest import fixture

from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.server_utils import ServerClient
from resources_servers.word_lab.app import AddWordRequest, WordLabConfig, WordLabRunRequest, WordLabServer


class TestApp:
    @fixture
    def config(self) -> WordLabConfig:
        return WordLabConfig(
            host="0.0.0.0",
            port=8080,
            entrypoint="",
            name="word_lab",
            judge_model_server=ModelServerRef(type="responses_api_models", name="judge"),
            judge_prompt_path=str(Path(__file__).parent.parent / "prompts" / "judge.yaml"),
        )

    def test_sanity(self, config) -> None:
        WordLabServer(config=config, server_client=MagicMock(spec=ServerClient))

    def test_session(self, config) -> None:
        server = WordLabServer(config=config, server_client=MagicMock(spec=ServerClient))
        app = server.setup_webserver()
        with TestClient(app) as client:
            seeded = client.post("/seed_session", json={"start": ["a"]})
            cookies = seeded.cookies
            added = client.post("/add_word", json={"word": "b"}, cookies=cookies)
            assert added.json() == {"words": ["a", "b"]}
            refused = client.post("/add_word", json={"word": "b", "times": 7}, cookies=added.cookies)
            assert refused.status_code == 400
            assert client.post("/add_word", json={}).status_code == 422

    async def test_verify(self, config) -> None:
        client = MagicMock(spec=ServerClient)
        server = WordLabServer(config=config, server_client=client)
        completion = {
            "id": "c",
            "created": 1,
            "model": "m",
            "object": "chat.completion",
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
            ],
        }
        reply = AsyncMock()
        reply.ok = True
        reply.status = 200
        reply.read = AsyncMock(return_value=NeMoGymChatCompletion.model_validate(completion).model_dump_json())
        client.post = AsyncMock(return_value=reply)
        request = MagicMock()
        request.session = {"session_id": "s"}
        server._sessions["s"] = ["a"]
        body = WordLabRunRequest(
            responses_create_params={"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
            response=NeMoGymResponse(
                id="r",
                created_at=0.0,
                model="m",
                object="response",
                output=[
                    {
                        "id": "m",
                        "content": [{"annotations": [], "text": "Bye", "type": "output_text"}],
                        "role": "assistant",
                        "status": "completed",
                        "type": "message",
                    }
                ],
                parallel_tool_calls=True,
                tool_choice="auto",
                tools=[],
            ),
            expected=["a"],
        )
        result = await server.verify(request, body)
        assert result.reward == 1.0
        assert result.reward_components == {"right": 1.0, "kind": 1.0}
        asked = client.post.call_args.kwargs
        assert asked["url_path"] == "/v1/chat/completions"
