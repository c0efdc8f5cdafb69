"""Workers as Ray actors, on a real cluster of three nodes, one of which is killed in the middle of a collection."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import orjson
import pytest

from nemo_gym.cluster.ray import import_ray
from nemo_gym.errors import MissingExtraError
from nemo_gym.testing import rows_of
from tests.commands import started
from tests.polling import until_sync

ROWS = 5000
IN_FLIGHT = 300
CONFIG = "agent: {responses_api_agents: {located: {entrypoint: app.py}}}\n"
SERVERS = Path(__file__).parent.parent / "servers"


class Nodes:
    def __init__(self, process: "subprocess.Popen[str]", stdin: IO[str], stdout: IO[str]) -> None:
        self._process, self._stdin, self._stdout = process, stdin, stdout
        self.address = self._line()

    def kill_one(self) -> None:
        self._stdin.write("\n")
        self._stdin.flush()
        assert self._line() == "removed"

    def _line(self) -> str:
        """The next line that is for us: Ray prints others."""
        for line in self._stdout:
            if line.strip() == "removed" or line[:1].isdigit():
                return line.strip()
        raise AssertionError("the cluster ended")


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    command = [sys.executable, "-m", "tests.ray_nodes", str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, process.stdin:
        try:
            yield Nodes(process, process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(60)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_every_rollout_is_scored_once_though_a_node_dies(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    (tmp_path / "config.yaml").write_text(CONFIG)
    rows = [{"seconds": 0.2, "computes": number >= ROWS - 20} for number in range(ROWS)]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    output = tmp_path / "out.jsonl"
    with (
        nodes(3) as cluster,
        started(
            "ng_collect_rollouts",
            f"+config_paths=[{tmp_path}/config.yaml]",
            "+agent_name=agent",
            f"+input_jsonl_fpath={tmp_path}/rows.jsonl",
            f"+output_jsonl_fpath={output}",
            f"+num_samples_in_parallel={IN_FLIGHT}",
            f"+ray_head_node_address={cluster.address}",
            "+num_workers=3",
            "+max_attempts=1",
            cwd=SERVERS,
        ) as collecting,
    ):
        until_sync(lambda: lines(output) > ROWS / 3 or collecting.process.poll() is not None)
        before = Counter(orjson.loads(line)["node"] for line in output.read_bytes().splitlines())
        cluster.kill_one()
        assert collecting.wait() == 0, collecting.text
    records = rows_of(output)
    assert sorted(record["_task_index"] for record in records) == list(range(ROWS)), collecting.text
    assert len(before) == 3, "one worker on each node"
    failures = rows_of(tmp_path / "out_failures.jsonl")
    assert {(failure["code"], failure["is_final"]) for failure in failures} == {("worker_lost", False)}
    computed = [record for record in records if "squares" in record]
    assert len(computed) == 20
    assert all(record["squares"] == [1, 4, 9] for record in computed)
    assert {record["pid"] for record in records}.isdisjoint(record["compute_pid"] for record in computed)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"nemo-gym\[ray\]"):
        import_ray()
