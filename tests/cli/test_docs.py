"""The reference pages say what the code says."""

import pytest

from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.docs import api_reference, commands_reference, pages, with_reference


@pytest.mark.parametrize("name", ["commands.md", "api.md"])
def test_a_reference_page_is_up_to_date(name: str) -> None:
    path, reference = next((path, reference) for path, reference in pages().items() if path.name == name)
    page = path.read_text()
    assert with_reference(page, reference) == page, "run `python -m nemo_gym.cli.docs`"


def test_every_command_has_a_section_with_its_parameters() -> None:
    reference = commands_reference()
    assert all(f"## `ng_{name}`" in reference for name in COMMANDS)
    assert "| `num_repeats` | whole number or keys and values | `1` |" in reference
    assert "| `input_jsonl_fpath` | file | required |" in reference


def test_the_classes_that_authors_use_are_in_the_api_reference() -> None:
    reference = api_reference()
    for name in ("SimpleResourcesServer", "SessionState", "ServerClient", "Judge", "Compute", "client_for", "tool("):
        assert name in reference
    assert "async verify(self" in reference


def test_what_is_written_by_hand_stays() -> None:
    page = with_reference("# By hand\n", "first\n")
    assert with_reference(page, "second") == page.replace("first", "second")
    assert page.startswith("# By hand\n")
