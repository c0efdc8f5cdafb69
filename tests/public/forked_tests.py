"""Run the tests of many folders, each in a fork of one process that has imported what most of them need: starting an
interpreter for each costs more than the tests do.

`forked_tests.py JOBS TIMEOUT_S REPORTS FOLDER...` writes `<n>.xml` for the n-th folder and prints its name."""

import contextlib
import importlib
import os
import sys
import time
from pathlib import Path

PRELOADED = (
    *(
        "pytest",
        "pytest_asyncio",
        "pytest_timeout",
        "unittest.mock",
        "fastapi.testclient",
        "openai",
        "numpy",
        "pandas",
    ),
    *("nemo_gym.base_resources_server", "nemo_gym.base_responses_api_agent", "nemo_gym.base_responses_api_model"),
    *("nemo_gym.openai_utils", "nemo_gym.server_utils", "nemo_gym.rollout_collection", "nemo_gym.global_config"),
    *("nemo_gym.reward_profile", "nemo_gym.judge", "nemo_gym.config_types", "nemo_gym.sandbox.registry"),
    *("nemo_gym.compat.fastapi_servers", "nemo_gym.prompt", "omegaconf", "hydra"),
)
FLAGS = (
    *("--import-mode=importlib", "-q", "-p", "no:cacheprovider", "--timeout=90"),
    "--continue-on-collection-errors",
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
)
PAUSE_S = 0.1


def main() -> None:
    jobs, timeout_s, reports, *folders = sys.argv[1:]
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    waiting = list(enumerate(folders))
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < int(jobs):
            number, folder = waiting.pop(0)
            running[_fork(folder, Path(reports) / f"{number}.xml")] = (folder, time.monotonic() + float(timeout_s))
        process, _ = os.waitpid(-1, os.WNOHANG)
        if process in running:
            print(running.pop(process)[0], flush=True)
        for late in [each for each, (_, until) in running.items() if time.monotonic() > until]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(late, 9)
        time.sleep(PAUSE_S)


def _fork(folder: str, report: Path) -> int:
    process = os.fork()
    if process:
        return process
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(folder)
        os.environ["PWD"] = folder
        sys.path.insert(0, folder)
        import pytest

        pytest.main([*FLAGS, f"--junitxml={report}", "."])
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
