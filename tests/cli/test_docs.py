"""The reference pages say what the code says."""

import inspect
import re

import pytest

import nemo_gym
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.docs import api_reference, commands_reference, pages, with_reference
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.data.catalogue import catalogue_page


@pytest.mark.parametrize("name", ["commands.md", "api.md", "catalogue.md"])
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
    for name in (
        "SimpleResourcesServer",
        "SessionState",
        "ServerClient",
        "Judge",
        "Compute",
        "EpisodeResourcesServer",
    ):
        assert f"\n### {name}\n" in reference
    for name in ("client_for", "tool", "evaluate"):
        assert f"\n### {name}\n\n```python\n" in reference
    assert "`await verify()`" in reference


def test_no_heading_of_the_api_reference_is_a_signature() -> None:
    headings = [line for line in api_reference().splitlines() if line.startswith("#")]
    assert max(map(len, headings)) < 70
    assert not [line for line in headings if "(" in line]


def test_every_name_of_the_package_is_in_the_api_reference() -> None:
    reference = api_reference()
    names = re.findall(r"^ {4,8}(?:from .* import )?\w+ as (\w+),?$", inspect.getsource(nemo_gym), re.MULTILINE)
    assert len(names) > 40
    assert [name for name in names if f"| `nemo_gym.{name}` |" not in reference] == []


def test_every_environment_is_in_the_catalogue() -> None:
    page = catalogue_page(PARENT_DIR)
    folders = [path.name for path in (PARENT_DIR / "resources_servers").iterdir() if (path / "app.py").is_file()]
    assert [name for name in folders if f"### `{name}`" not in page] == []
    assert page.count("\nuser: ") >= len(folders) // 2


def test_what_is_written_by_hand_stays() -> None:
    page = with_reference("# By hand\n", "first\n")
    assert with_reference(page, "second") == page.replace("first", "second")
    assert page.startswith("# By hand\n")
