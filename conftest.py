"""Settings for all tests: property tests try the same examples in every run, and a slow machine fails none of them.

Tests that start commands, worker pools or sandboxes are marked `slow`; `make test-fast` leaves them out.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Several test processes share the cores, and the matrices of tests are small: threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Runs of tests are not among those of the user. All test processes share one registry.
if "NEMO_GYM_STATE_DIR" not in os.environ:
    os.environ["NEMO_GYM_STATE_DIR"] = tempfile.mkdtemp(prefix="nemo-gym-state-")
    atexit.register(shutil.rmtree, os.environ["NEMO_GYM_STATE_DIR"], ignore_errors=True)

settings.register_profile(
    "nemo_gym", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("nemo_gym")

FAST = ("common", "config", "llm_api", "client", "server", "rollouts", "data")
SLOW_MODULES = frozenset(
    (
        *("test_descriptor_limit", "test_watchdog", "test_http_protocol"),
        *("test_error_responses", "test_hugging_face", "test_gitlab", "test_generate", "test_import_rows"),
        *(
            "test_prepare",
            "test_pypi",
            "test_readme_tables",
            "test_reply_limits",
            "test_response_desync",
            "test_openai_package",
        ),
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent / "tests"
    for item in items:
        if item.path.stem in SLOW_MODULES or item.path.parent not in {root / name for name in FAST}:
            item.add_marker(pytest.mark.slow)
