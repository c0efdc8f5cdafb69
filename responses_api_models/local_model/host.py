"""The process of the engine: it loads the model and serves it on loopback until its standard input is closed.

In its own process the engine neither blocks the event loop of a worker while it loads, nor crashes the worker.
It reads its parameters as one line of JSON, and writes one line: its URL, or an error.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

PROMPT_CACHE_MIB = 256
"""For conversations between turns. The engine's own default is 8 GiB."""

ERRORS_ONLY = 1


def main() -> None:
    parameters = json.loads(sys.stdin.readline())
    try:
        server = _start_server(parameters)
        answer = {"url": server.listening_address}
    except Exception as error:  # reported to the worker
        answer = {"error": str(error) or type(error).__name__}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # the engine's own shutdown may hang


def _start_server(parameters: dict[str, Any]) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = parameters["gguf"]
    params.n_ctx = parameters["context_tokens"] * parameters["slots"]
    params.n_parallel = parameters["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = parameters["threads"]
    params.api_keys = [parameters["key"]]
    params.ui = False
    params.fit_params = False
    params.verbosity = ERRORS_ONLY
    params.cache_ram_mib = PROMPT_CACHE_MIB
    if parameters["chat_template"] is not None:
        params.chat_template = parameters["chat_template"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
