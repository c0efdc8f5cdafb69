"""The process that the engine runs in. It loads the model and serves it on loopback until its input ends.

In a process of its own the engine cannot hold up a worker's loop while it loads, nor take the worker along when it
crashes. It is told what to do in one line of JSON and answers in one line: where it listens, or why it does not.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

PROMPT_CACHE_MIB = 256
"""For conversations that wait for their next turn. The engine's own default is 8 GiB."""

ERRORS_ONLY = 1


def main() -> None:
    told = json.loads(sys.stdin.readline())
    try:
        server = _served(told)
        answer = {"url": server.listening_address}
    except Exception as error:  # whatever it is, the one who asked is to know
        answer = {"error": str(error) or type(error).__name__}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # the engine's own way to stop may wait for ever


def _served(told: dict[str, Any]) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = told["gguf"]
    params.n_ctx = told["context_tokens"] * told["slots"]
    params.n_parallel = told["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = told["threads"]
    params.api_keys = [told["key"]]
    params.ui = False
    params.fit_params = False
    params.verbosity = ERRORS_ONLY
    params.cache_ram_mib = PROMPT_CACHE_MIB
    if told["chat_template"] is not None:
        params.chat_template = told["chat_template"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
