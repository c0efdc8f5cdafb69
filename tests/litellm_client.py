"""Drives a model server with litellm, in an interpreter that has it: litellm needs older packages than this project.

Usage: python litellm_client.py <base URL> ... Prints what happened, one JSON object a line.
"""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # type: ignore[import-not-found,unused-ignore]

SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def ask(url: str, text: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return litellm.completion(
        model="openai/scripted", base_url=f"{url}/v1", api_key="any", messages=messages, num_retries=0, **more
    )


def tell(url: str, **fields: Any) -> None:
    print(json.dumps({"url": url, **fields}), flush=True)


def main(url: str) -> None:
    listed: Any = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_key="any", api_base=f"{url}/v1"
    )
    tell(url, models=len(listed))
    tell(url, said=ask(url, "Hi.").choices[0].message.content)
    tell(url, streamed="".join(chunk.choices[0].delta.content or "" for chunk in ask(url, "Hi.", stream=True)))
    calls: Any = (
        ask(url, "Weather?", tools=[TOOL], tool_choice="required", max_tokens=64).choices[0].message.tool_calls
    )
    tell(url, called=[call.function.name for call in calls])
    answer: Any = litellm.responses(model="openai/scripted", input="Hi.", api_base=f"{url}/v1", api_key="any")
    tell(url, response=answer.output[-1].content[0].text)
    message: Any = litellm.completion(
        model="anthropic/scripted",
        api_base=url,
        api_key="any",
        messages=[{"role": "user", "content": "Hi."}],
        num_retries=0,
    )
    tell(url, message=message.choices[0].message.content)
    for status in (400, 401, 404, 429, 500):
        try:
            ask(url, f"Fail {status}!", max_retries=0)
        except Exception as error:
            tell(url, status=status, raised=type(error).__name__)


if __name__ == "__main__":
    for url in sys.argv[1:]:
        main(url)
