"""Run the folders of the public package on ours and print a table: `make check-public`.

Its wheel is fetched into a temporary folder, its core is deleted unread, and what is left is resolved by
`ng_check_compat`, tested by the folders' own tests, and plays its example rows. Nothing is left behind."""

import argparse
import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.public.play_public import Played, examples, play

PUBLIC = "nemo-gym==0.7.0"
CLONE = Path(__file__).resolve().parents[2]
KINDS = ("resources_servers", "responses_api_agents", "responses_api_models", "environments", "benchmarks")
TESTED = (*KINDS, "environment_servers")
FOLDER_TIMEOUT_S = 600.0
NOT_FROM_HERE = (
    ("a container", r"docker|apptainer|podman|enroot|singularity|opensandbox"),
    (
        "a download",
        r"ConnectError|Name or service not known|Temporary failure in name|MaxRetryError|getaddrinfo|"
        r"NameResolutionError|Max retries exceeded|"
        r"LocalEntryNotFoundError|OfflineMode|git.?clone|URLError|Cannot connect|ProxyError|ConnectionRefused|"
        r"couldn't connect|offline|Resource \S+ not found|nltk|HTTPError|SSLError|NetworkError|DownloadError",
    ),
    ("Ray in time", r"RPC error: Deadline Exceeded|GCS cannot find the node|Timed out.*(raylet|GCS)"),
    ("a GPU", r"\bCUDA\b|nvidia|vllm"),
    ("a key", r"api[_ ]key"),
    ("a file that the wheel lacks", r"FileNotFoundError|No such file or directory|FileExists|does not exist"),
)
"""Reasons for which a test cannot pass here, and how its error says so."""


@dataclass
class FolderResult:
    """The tests of one folder."""

    folder: str
    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """The first line of the error of each test, or of each file that cannot be imported."""
    unmet: dict[str, int] = field(default_factory=dict)
    """The number of tests that need what is not here, by what they need."""
    lost: int = 0
    """The number of tests in `failed`, those of files that cannot be imported included."""


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="check-public-") as temporary:
        place = Path(temporary)
        root = (options.wheel and options.wheel.absolute()) or _fetch(place)
        python = (options.python and options.python.absolute()) or _virtualenv(place, root)
        steps = {options.step} if options.step else {"resolve", "test", "play"}
        reports = _resolve(root, python) if "resolve" in steps else []
        folders = list(_tested_folders(root, options.only)) if "test" in steps else []
        results = _run_tests(folders, root, python, options.jobs) if folders else []
        played = asyncio.run(_play(root, python, place, options.only)) if "play" in steps else []
    if options.json:
        found = {"resolve": reports, "tests": list(map(asdict, results)), "played": list(map(asdict, played))}
        options.json.write_text(json.dumps(found, indent=1))
    _print_table(reports, results)
    _print_played(played)
    return 0


async def _play(root: Path, python: Path, place: Path, only: str) -> list[Played]:
    """Play the example rows of each folder."""
    path = os.pathsep.join((str(CLONE / ".tools" / "bin"), os.environ["PATH"]))
    environment = {**_environment(root), "PATH": path, "TMPDIR": str(place)}
    outputs = ((each, place / "played" / f"{number}.jsonl") for number, each in enumerate(examples(root, only)))
    (place / "played").mkdir()
    return [await play(each, root, python, output, environment) for each, output in outputs]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="an unpacked wheel without its core")
    parser.add_argument("--python", type=Path, help="an interpreter that has our package and those of the folders")
    parser.add_argument("--only", default="", help="a regular expression for `<kind>/<folder>`")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--step", choices=("resolve", "test", "play"), help="make only this step")
    return parser.parse_args()


# The wheel and an interpreter for it


def _fetch(place: Path) -> Path:
    """Download the wheel and unpack its folders. Its core and its metadata are deleted unread."""
    flags = ("--no-deps", "--python-version", "3.13.99", "--only-binary=:all:", "--quiet", "--dest", str(place))
    subprocess.run([sys.executable, "-m", "pip", "download", *flags, PUBLIC], check=True)
    root = place / "public"
    shutil.unpack_archive(next(place.glob("*.whl")), root, format="zip")
    for unwanted in (root / "nemo_gym", *root.glob("*.dist-info")):
        shutil.rmtree(unwanted)
    return root


def _virtualenv(place: Path, root: Path) -> Path:
    """Make a virtualenv with our package and the packages of the folders, as far as the registry has them."""
    uv, environment = str(CLONE / ".tools" / "bin" / "uv"), place / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", _interpreter(), str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, "--editable", f"{CLONE}[dev,data,ray,tokens]", "pytest-timeout"], check=True)
    for name in (CLONE / "tests" / "public" / "packages.txt").read_text().split():
        subprocess.run([*install, name, "omegaconf>=2.3"], check=False, timeout=300, stderr=subprocess.DEVNULL)
    return python


def _interpreter() -> str:
    """Return the newest Python that runs: pyenv has names on PATH for versions that are not selected."""
    for name in ("python3.13", "python3.12"):
        done = shutil.which(name) and subprocess.run([name, "--version"], capture_output=True, check=False)
        if done and done.returncode == 0:
            return name
    return sys.executable


# Names and configs


def _resolve(root: Path, python: Path) -> list[dict[str, object]]:
    """Return what `ng_check_compat` says of each folder."""
    program = (
        "import json, sys; from pathlib import Path; from nemo_gym.compat.folder_check import check_folder; "
        "print(json.dumps([{'folder': str(each.folder), 'problems': each.problems, 'remarks': each.remarks} "
        "for each in check_folder(Path(sys.argv[1]))]))"
    )
    done = subprocess.run(
        [python, "-c", program, str(root)], cwd=root, stdout=subprocess.PIPE, check=True, env=_environment(root)
    )
    reports: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return [{**each, "folder": str(Path(str(each["folder"])).relative_to(root))} for each in reports]


def _environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    offline = {"HF_HUB_OFFLINE": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    compiled = os.environ.get("PYTHONPYCACHEPREFIX") or str(root.parent / "compiled")
    places = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": compiled, "NEMO_GYM_EXTRA_ROOTS": str(root)}
    return {**os.environ, **offline, **places}


# Tests


def _tested_folders(root: Path, only: str) -> Iterator[Path]:
    for kind in TESTED:
        for folder in sorted((root / kind).iterdir()):
            if re.search(only, f"{kind}/{folder.name}") and any(folder.rglob("test_*.py")):
                yield folder


def _run_tests(folders: list[Path], root: Path, python: Path, jobs: int) -> list[FolderResult]:
    with tempfile.TemporaryDirectory() as temporary:
        program, limits = str(Path(__file__).with_name("forked_tests.py")), (str(jobs), str(FOLDER_TIMEOUT_S))
        environment = {**_environment(root), "TMPDIR": temporary}
        command = [str(python), program, *limits, temporary, *map(str, folders)]
        subprocess.run(command, cwd=root, env=environment, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        return [_result(folder, root, Path(temporary) / f"{index}.xml") for index, folder in enumerate(folders)]


def _result(folder: Path, root: Path, report: Path) -> FolderResult:
    result = FolderResult(str(folder.relative_to(root)))
    if report.is_file():
        for case in ElementTree.parse(report).iter("testcase"):
            _add(case, folder, result)
    else:
        result.failed["."] = f"pytest did not finish: {report.with_suffix('.log').read_text()[-200:]}"
        result.lost += 1
    return result


def _add(case: ElementTree.Element, folder: Path, result: FolderResult) -> None:
    bad = next((each for each in case if each.tag in ("failure", "error")), None)
    if bad is None:
        if any(each.tag == "skipped" for each in case):
            result.skipped += 1
        else:
            result.passed += 1
        return
    text = f"{bad.get('message', '')}\n{bad.text or ''}"
    name = f"{case.get('classname')}::{case.get('name')}".removeprefix("::")
    tests = _tests_in(folder, name) if bad.get("message") == "collection failure" else 1
    need = _need(text, folder)
    if need:
        result.unmet[need] = result.unmet.get(need, 0) + tests
    else:
        result.lost += tests
        result.failed[name] = _error_line(text)


def _tests_in(folder: Path, module: str) -> int:
    """Return the number of tests of a file that cannot be imported."""
    file = folder / (module.split("::")[0].replace(".", "/") + ".py")
    if not file.is_file():
        return 1
    names = (getattr(node, "name", "") for node in ast.walk(ast.parse(file.read_text())))
    return max(1, sum(str(name).startswith("test") for name in names))


def _need(text: str, folder: Path) -> str | None:
    """Return what a test needs that is not here, or None if it fails because of us."""
    missing = re.findall(r"No module named '([\w.]+)'", text)
    own = {file.stem for file in folder.parents[1].rglob("*.py")} if missing else set()
    uninstalled = re.search(r"cannot import name '\w+' from '(\w+)' \(unknown location\)", text)
    if uninstalled and uninstalled[1] not in ("nemo_gym", *TESTED):
        return f"the package {uninstalled[1]}"
    if missing and missing[-1].split(".")[0] not in ("nemo_gym", *TESTED) and missing[-1].split(".")[0] not in own:
        return f"the package {missing[-1].split('.')[0]}"
    line = _error_line(text)
    if "nemo_gym" in line and "Error: No such file" not in line and "FileNotFound" not in line:
        return None
    return next((need for need, pattern in NOT_FROM_HERE if re.search(pattern, line, re.IGNORECASE)), None)


def _error_line(text: str) -> str:
    lines = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Warning|Exit|Timeout)\b", line)]
    return (errors[-1] if errors else (lines or text.strip().splitlines() or ["?"])[0])[:300]


# Table


def _print_table(reports: list[dict[str, object]], results: list[FolderResult]) -> None:
    for kind in TESTED:
        own = [each for each in reports if str(each["folder"]).startswith(f"{kind}/")]
        tested = [each for each in results if each.folder.startswith(f"{kind}/")]
        print(f"{kind:22} resolve {_share(sum(not each['problems'] for each in own), len(own)):>9}  {_counts(tested)}")
    good = sum(not each["problems"] for each in reports)
    print(f"{'all':22} resolve {_share(good, len(reports)):>9}  {_counts(results)}")
    for each in reports:
        for problem in each["problems"] if isinstance(each["problems"], list) else ():
            print(f"does not resolve: {each['folder']}: {problem}")
    for result in results:
        for name, error in result.failed.items():
            print(f"fails: {result.folder}: {name}: {error}")
    needs: Counter[str] = Counter()
    for result in results:
        needs.update(result.unmet)
    for need, times in needs.most_common():
        print(f"not run: {times} tests need {need}")


def _print_played(results: list[Played]) -> None:
    if results:
        rows, scored = sum(each.rows for each in results), sum(each.scored for each in results)
        equal, different = sum(each.equal for each in results), sum(len(each.different) for each in results)
        whole = sum(each.scored == each.rows for each in results)
        print(f"played: {scored} of {rows} rows scored, {whole} of {len(results)} files whole")
        print(f"rewards: {equal} as stored, {different} other")
    for each in results:
        why = each.error or ", ".join(each.failures)
        judged = f" ({each.unknown_requests} requests that no stored rollout has)" if each.unknown_requests else ""
        if why:
            print(f"not played: {each.example}: {each.rows - each.scored} rows: {why}")
        for difference in each.different:
            print(f"other reward: {each.example}: {difference}{judged}")


def _share(good: int, total: int) -> str:
    return f"{good}/{total}"


def _counts(results: list[FolderResult]) -> str:
    passed, lost = sum(each.passed for each in results), sum(each.lost for each in results)
    unmet = sum(sum(each.unmet.values()) for each in results)
    share = f" ({passed / (passed + lost):.1%})" if passed + lost else ""
    whole = sum(not each.failed for each in results)
    tests = f"tests {_share(passed, passed + lost):>11}{share}, {unmet} need more"
    return f"{tests}, folders whole {_share(whole, len(results))}"


if __name__ == "__main__":
    raise SystemExit(main())
