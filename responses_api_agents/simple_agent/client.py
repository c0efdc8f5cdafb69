"""Ask the weather agent of a running `ng_run` one question and print what it did."""

import asyncio
import json
import sys

from nemo_gym import ServerClient

AGENT = sys.argv[1] if len(sys.argv) > 1 else "simple_weather_simple_agent"
REQUEST = {
    "input": [
        {"role": "developer", "content": "You are a helpful assistant. Use a tool when one helps."},
        {"role": "user", "content": "Should I pack a scarf for Oslo?"},
    ],
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Tell the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city's name."}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        }
    ],
}


async def main() -> None:
    client = ServerClient.load_from_global_config()
    answer = await client.post(server_name=AGENT, url_path="/v1/responses", json=REQUEST)
    answer.raise_for_status()
    print(json.dumps((await answer.json())["output"], indent=4))
    await client.http.close()


if __name__ == "__main__":
    asyncio.run(main())
