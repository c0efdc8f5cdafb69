"""What commands print as JSON."""

import json

import pytest

from nemo_gym.cli.output import json_output, print_result
from nemo_gym.config.secrets import Secrets, set_process_secrets


def test_a_document_has_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    set_process_secrets(Secrets(frozenset(("pineapple",))))
    with json_output() as ended:
        print_result({"a pineapple": ["pineapple 7"], "mean": 0.5})
        ended.error = "no pineapple"
    document = json.loads(capsys.readouterr().out)
    assert document == {"a ****": ["**** 7"], "mean": 0.5, "error": "no ****", "exit_code": 0}
