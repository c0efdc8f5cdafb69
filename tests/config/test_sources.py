from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.config.command_line import parse_command_line
from nemo_gym.config.sources import COMMAND_LINE, PYTHON, ConfigSources, command_line_config, find_dotenv, read_sources
from nemo_gym.errors import ConfigError, MissingPathError

Files = Mapping[str, Any]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(files: Files, folder: Path | None = None) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
        ((folder or Path.cwd()) / name).write_text(text)


def read(arguments: list[str], files: Files | None = None, initial: Files | None = None) -> ConfigSources:
    """The sources, with an env.yaml only if it is one of the files."""
    write(files or {})
    return read_sources(arguments, initial=initial, dotenv_path=Path("env.yaml"))


def merged(arguments: list[str], files: Files | None = None, initial: Files | None = None) -> Any:
    return OmegaConf.to_container(read(arguments, files, initial).merge())


def test_nothing_gives_an_empty_config() -> None:
    assert merged([]) == {}


def test_each_source_wins_over_the_one_before() -> None:
    files = {"a.yaml": {"k": "a", "a": 1}, "b.yaml": {"k": "b", "b": 1}, "env.yaml": {"k": "env", "env": 1}}
    python = {"k": "python", "python": 1}
    rest = {"config_paths": ["a.yaml", "b.yaml"], "a": 1, "b": 1}
    paths = "+config_paths=[a.yaml,b.yaml]"
    assert merged([paths, "~env"], files) == {"k": "env", **rest}
    assert merged([paths], files, python) == {"k": "python", "env": 1, "python": 1, **rest}
    assert merged([paths, "k=cli"], files, python) == {"k": "cli", "env": 1, "python": 1, **rest}
    (Path("env.yaml")).unlink()
    assert merged([paths]) == {"k": "b", **rest}


@pytest.mark.parametrize(
    ("env", "initial", "arguments", "used"),
    [
        (["a.yaml"], None, [], ["a.yaml"]),
        (["a.yaml"], ["b.yaml"], [], ["b.yaml"]),
        (["a.yaml"], ["b.yaml"], ["config_paths=[c.yaml]"], ["c.yaml"]),
        ("${others}", None, [], ["c.yaml", "a.yaml"]),
        (None, None, ["config_paths=${others}"], ["c.yaml", "a.yaml"]),
        (["${first}"], None, ["first=b.yaml"], ["b.yaml"]),
        (["a.yaml"], None, ["config_paths=null"], None),
        (["a.yaml"], None, ["~config_paths"], "absent"),
    ],
)
def test_the_highest_source_says_which_files(env: Any, initial: Any, arguments: list[str], used: Any) -> None:
    files = {name: {"file": name} for name in ("a.yaml", "b.yaml", "c.yaml")}
    settings = {"others": ["c.yaml", "a.yaml"]} | ({"config_paths": env} if env else {})
    config = merged(arguments, files | {"env.yaml": settings}, {"config_paths": initial} if initial else None)
    assert config.get("config_paths", "absent") == used
    if isinstance(used, list):
        assert config["file"] == used[-1]


def test_the_includer_wins_over_what_it_includes() -> None:
    files = {
        "main.yaml": {"config_paths": ["base.yaml"], "k": "main"},
        "base.yaml": {"config_paths": ["deep.yaml"], "k": "base", "only_base": 1},
        "deep.yaml": {"k": "deep", "only_base": 0, "only_deep": 1},
    }
    config = merged(["config_paths=[main.yaml]"], files)
    assert config == {
        "config_paths": ["deep.yaml", "base.yaml", "main.yaml"],
        "k": "main",
        "only_base": 1,
        "only_deep": 1,
    }


def test_files_that_include_each_other_are_each_read_once() -> None:
    files = {
        "a.yaml": {"config_paths": ["b.yaml", "a.yaml"], "k": "a"},
        "b.yaml": {"config_paths": ["a.yaml"], "k": "b"},
    }
    assert merged(["config_paths=[a.yaml]"], files) == {"config_paths": ["b.yaml", "a.yaml"], "k": "a"}


def test_a_file_named_twice_has_its_last_place_however_it_is_spelt(tmp_path: Path) -> None:
    sources = read([f"config_paths=[a.yaml,b.yaml,{tmp_path}/a.yaml]"], {"a.yaml": {"k": 1}, "b.yaml": {"k": 2}})
    assert [file.config_path for file in sources.files] == ["b.yaml", f"{tmp_path}/a.yaml"]


def test_an_included_file_that_is_also_listed_keeps_its_place_in_the_list() -> None:
    files = {"a.yaml": {"config_paths": ["b.yaml"], "k": "a"}, "b.yaml": {"k": "b"}}
    assert merged(["config_paths=[a.yaml,b.yaml]"], files) == {"config_paths": ["a.yaml", "b.yaml"], "k": "b"}


def test_an_include_may_be_an_interpolation_of_a_setting() -> None:
    files = {
        "env.yaml": {"model": "b"},
        "a.yaml": {"config_paths": ["${model}.yaml", "${own}"], "own": "c.yaml"},
        "b.yaml": {},
        "c.yaml": {},
    }
    assert merged(["config_paths=[a.yaml]"], files)["config_paths"] == ["b.yaml", "c.yaml", "a.yaml"]


NAMES = [f"f{number}.yaml" for number in range(5)]
GRAPHS = st.fixed_dictionaries({name: st.lists(st.sampled_from(NAMES), max_size=3, unique=True) for name in NAMES})
ORDERS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)


def reachable(graph: Mapping[str, list[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += graph[name]
    return found


@settings(deadline=None, max_examples=40)
@given(graph=GRAPHS, order=ORDERS)
def test_later_wins_and_includer_wins(
    graph: Mapping[str, list[str]], order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    paths = {name: str(folder / name) for name in NAMES}
    contents = {name: {"config_paths": [paths[i] for i in graph[name]], "k": name, name: 1} for name in NAMES}
    write(contents, folder)

    def read_paths(wanted: list[str]) -> dict[str, Any]:
        config = read_sources([], initial={"config_paths": wanted}, use_dotenv=False).merge()
        values = OmegaConf.to_container(config)
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items()}

    config = read_paths([paths[name] for name in order])
    merge_order = [Path(path).name for path in config["config_paths"]]
    rank = {name: place for place, name in enumerate(merge_order)}
    wanted = set().union(*(reachable(graph, name) for name in order))

    assert sorted(merge_order) == sorted(wanted)
    assert config["k"] == merge_order[-1]
    assert [name for name in merge_order if name in order] == order
    for includer in wanted:
        for included in graph[includer]:
            if included not in order and includer not in reachable(graph, included):
                assert rank[included] < rank[includer]
    assert read_paths(config["config_paths"]) == config


def test_paths_are_looked_up_in_the_working_directory_then_beside_the_package() -> None:
    shipped = PARENT_DIR / "pyproject.toml"
    with pytest.raises(ConfigError, match=f"{shipped}, line .*invalid YAML"):
        read(["config_paths=[pyproject.toml]"])
    assert merged(["config_paths=[pyproject.toml]"], {"pyproject.toml": {"k": 1}})["k"] == 1


def test_the_env_file_is_that_of_the_working_directory(tmp_path: Path) -> None:
    write({"env.yaml": {"k": 1}})
    assert find_dotenv() == tmp_path / "env.yaml"
    assert OmegaConf.to_container(read_sources().merge()) == {"k": 1}
    assert OmegaConf.to_container(read_sources(use_dotenv=False).merge()) == {}


def test_a_given_env_file_that_is_absent_is_passed_over() -> None:
    write({"env.yaml": {"k": 1}})
    assert find_dotenv(Path("other.yaml")) is None


def test_what_python_passes_in_is_neither_changed_nor_obeyed_in_its_flags() -> None:
    initial = OmegaConf.create({"a": {"b": 1}})
    OmegaConf.set_readonly(initial, True)
    OmegaConf.set_struct(initial, True)
    config = read_sources(["a.c=2"], initial=initial, use_dotenv=False).merge()
    config.a.d = 3
    assert config == {"a": {"b": 1, "c": 2, "d": 3}}
    assert initial == {"a": {"b": 1}}


def test_every_value_knows_its_source(tmp_path: Path) -> None:
    files = {"a.yaml": {"s": {"x": 1, "y": [1, {"z": 1}]}}, "b.yaml": {"s": {"x": 2}}, "env.yaml": {"e": 1}}
    sources = read(["config_paths=[a.yaml,b.yaml]", "s.w=1"], files, {"p": 1})
    assert sources.origin_of(("s", "x")) == str(tmp_path / "b.yaml")
    assert sources.origin_of(("s", "y", 1, "z")) == str(tmp_path / "a.yaml")
    assert sources.origin_of(("s", "y", 1, "absent")) == str(tmp_path / "a.yaml")
    assert sources.origin_of(("s", "w")) == COMMAND_LINE
    assert sources.origin_of(("e",)) == "env.yaml"
    assert sources.origin_of(("p",)) == PYTHON
    assert sources.origin_of(("nowhere",)) == ""


def test_sources_can_be_logged_without_their_secrets() -> None:
    sources = read(["config_paths=[a.yaml]", "b.api_key=sk-abcdef"], {"a.yaml": {"api_key": "sk-abcdef"}})
    assert "sk-abcdef" not in repr(sources)


def test_the_command_line_can_be_read_by_itself() -> None:
    assert command_line_config(parse_command_line(["+a.b=1", "~c"])) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1", "bad.yaml, line 1, column 6: invalid YAML: expected ',' or ']'"),
        ("a: 1\nb: c: d", "bad.yaml, line 2, column 5: invalid YAML: mapping values are not allowed here."),
        ("a: 1\na: 2", "bad.yaml, line 2, column 1: invalid YAML: found duplicate key a."),
        ("- a", "bad.yaml: found a list at the top level, expected keys and values."),
        ("5", "bad.yaml: cannot be read: "),
        (
            "a:\n\tb: 1",
            "bad.yaml, line 2, column 1: invalid YAML: found character '\\t' that cannot start any token. Indent",
        ),
        ("hello", "bad.yaml: found text without keys, expected lines like 'key: value', with the space."),
        ("password:x${y\nb:2", "bad.yaml: found text without keys"),
        ("a:\n  password: x${y", "bad.yaml: invalid interpolation at 'a.password'."),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_place(content: str, message: str, tmp_path: Path) -> None:
    for arguments in (["config_paths=[bad.yaml]"], ["config_paths=[good.yaml]"]):
        with pytest.raises(ConfigError) as caught:
            read(arguments, {"bad.yaml": content, "good.yaml": {"config_paths": ["bad.yaml"]}})
        assert f"{tmp_path}/{message}" in str(caught.value)
        assert "x${y" not in str(caught.value)


def test_a_binary_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bad\.yaml: .*UTF-8"):
        read(["config_paths=[bad.yaml]"])


@pytest.mark.parametrize("content", ["a:", "# only a comment", "", "a: # later"])
def test_a_file_of_one_unset_key_or_none_is_fine(content: str) -> None:
    assert read(["config_paths=[some.yaml]"], {"some.yaml": content}).files


def test_an_env_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"env\.yaml: .*directory"):
        read_sources()
    (tmp_path / "env.yaml").rmdir()
    (tmp_path / "env.yaml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"env\.yaml: .*No such file"):
        read_sources()


def test_a_missing_file_names_the_nearest_and_who_asked_for_it(tmp_path: Path) -> None:
    files = {"main.yaml": {"config_paths": ["wether.yaml"]}, "weather.yaml": {}}
    with pytest.raises(MissingPathError) as caught:
        read(["config_paths=[main.yaml]"], files)
    message = str(caught.value)
    assert "No config file 'wether.yaml'" in message
    assert f"Did you mean '{tmp_path}/weather.yaml'?" in message
    assert f"config_paths of {tmp_path}/main.yaml." in message
    assert isinstance(caught.value, FileNotFoundError)


def test_a_file_that_only_ends_alike_is_not_suggested() -> None:
    with pytest.raises(MissingPathError) as caught:
        read(["config_paths=[missing.yaml]"], {"bin.yaml": {}})
    assert "Did you mean" not in str(caught.value)


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    with pytest.raises(ConfigError, match=r"configs is a folder.*command line"):
        read(["config_paths=[configs]"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config_paths=[1]"], "config_paths of the command line is [1], expected a list of files."),
        (["config_paths={a:1}"], "config_paths of the command line is {'a': 1}, expected a list of files."),
        (["config_paths=${unset}"], "config_paths of the command line: Interpolation key 'unset' not found."),
        (["config_paths=[main.yaml]"], "main.yaml is 'a.yaml', expected a list of files."),
    ],
)
def test_config_paths_has_to_be_a_list_of_files(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(arguments, {"a.yaml": {}, "main.yaml": {"config_paths": "a.yaml"}})
    assert message in str(caught.value)


def test_a_list_and_a_mapping_cannot_be_merged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        merged(
            ["config_paths=[a.yaml,b.yaml]"], {"a.yaml": {"x": 1, "s": {"k": {"n": 1}}}, "b.yaml": {"s": {"k": [1]}}}
        )
    message = f"{tmp_path}/b.yaml: cannot merge 's.k': it is a list in one source and a mapping in another."
    assert str(caught.value) == message


def test_on_the_command_line_one_file_is_a_list_of_files() -> None:
    assert merged(["+config_paths=a.yaml"], {"a.yaml": {"k": 1}}) == {"config_paths": ["a.yaml"], "k": 1}


def test_what_python_adds_may_depend_on_the_other_settings() -> None:
    write({"env.yaml": {"k": 1}, "a.yaml": {"j": 2}})
    sources = read_sources(["+c=5"], initial=lambda given: {"d": given.k + given.c, "config_paths": ["a.yaml"]})
    assert OmegaConf.to_container(sources.merge()) == {"j": 2, "k": 1, "d": 6, "c": 5, "config_paths": ["a.yaml"]}
