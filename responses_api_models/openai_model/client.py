"""Ask the model of a running `ng_run` for a greeting, in both dialects, and print what it answers."""

import asyncio
import json
import sys

from nemo_gym import ServerClient

MODEL = sys.argv[1] if len(sys.argv) > 1 else "policy_model"
REQUESTS = {
    "/v1/responses": {"input": [{"role": "user", "content": "Say hello."}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Say hello."}]},
}


async def main() -> None:
    client = ServerClient.load_from_global_config()
    for path, request in REQUESTS.items():
        answer = await client.post(server_name=MODEL, url_path=path, json=request)
        answer.raise_for_status()
        print(path, json.dumps(await answer.json(), indent=4))
    await client.http.close()


if __name__ == "__main__":
    asyncio.run(main())
