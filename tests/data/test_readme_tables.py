"""The tables of environments in the README are those that the configurations say."""

from pathlib import Path

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.data.readme_tables import generated_row_count, updated_readme
from nemo_gym.errors import ConfigError

README = PARENT_DIR / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="an installed package has no README")
def test_the_readme_is_up_to_date() -> None:
    text = README.read_text()
    assert updated_readme(text, PARENT_DIR) == text, "run ng_update_readme"


def test_a_readme_without_a_place_for_the_tables_is_an_error() -> None:
    with pytest.raises(ConfigError, match="START_EXAMPLE_ONLY_SERVERS_TABLE"):
        updated_readme("# Nothing", PARENT_DIR)


GENERATOR = """
def generate_rows(seed, count, difficulty):
    from nemo_gym.errors import ConfigError

    yield {}
    raise ConfigError("no more")
"""


def test_rows_are_counted_over_all_difficulties(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "tiny_generator"
    folder.mkdir(parents=True)
    assert generated_row_count(folder) == "-"
    (folder / "generate.py").write_text(GENERATOR)
    assert generated_row_count(folder) == "about 5"
