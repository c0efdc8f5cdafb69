"""Run tests with pytest and write down how each ended. This file is copied into the container of a grading.

The tested code runs in the same process, and may print anything or end it: the report counts only with the secret in
it, which is read and deleted before any file of the repository is imported. Runs with any Python 3."""

import json
import os
import sys
from typing import Any

SECRET, REPORT = ".git/nemo-gym-secret", ".git/nemo-gym-report"


class Recorder:
    """A plugin of pytest."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_load_initial_conftests(self) -> None:
        """Only now, with pytest and its plugins imported: a repository may hold modules of the same names."""
        sys.path.insert(0, os.getcwd())

    def pytest_runtest_logreport(self, report: Any) -> None:
        is_expected = hasattr(report, "wasxfail")
        if report.when != "call" and report.failed:
            self.outcomes[report.nodeid] = "ERROR"
        elif report.when == "call" or report.skipped:
            names = {"passed": "XPASS" if is_expected else "PASSED", "skipped": "XFAIL" if is_expected else "SKIPPED"}
            self.outcomes[report.nodeid] = names.get(report.outcome, "FAILED")


def main() -> None:
    import pytest

    with open(SECRET) as file:
        secret = file.read()
    os.unlink(SECRET)
    dump, recorder = json.dumps, Recorder()
    pytest.main(sys.argv[1:], plugins=[recorder])
    with open(REPORT, "w") as file:
        file.write(secret + dump(recorder.outcomes))
    os._exit(0)


if __name__ == "__main__":
    main()
