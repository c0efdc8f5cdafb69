"""A collection whose `ng_run` is killed says so, waits for it, and goes on, with all metrics in the end."""

import json
import os
import signal
from pathlib import Path

from nemo_gym.testing import example_row, rows_of
from tests.commands import free_port, started
from tests.polling import until_sync
from tests.stacks import agent_config

ROWS = 60
CONFIG = agent_config("own_metrics", replies=[{"latency_s": 0.5, "say": "Done."}])
ENVIRONMENT = """
from typing import Any

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class OwnFiguresResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return {"own": len(tasks)}
"""


def test_a_collection_says_that_its_servers_are_gone_and_goes_on_with_new_ones(tmp_path: Path) -> None:
    (tmp_path / "resources_servers/own_metrics").mkdir(parents=True)
    (tmp_path / "resources_servers/own_metrics/app.py").write_text(ENVIRONMENT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rows.jsonl").write_text((json.dumps(example_row("Wait.")) + "\n") * ROWS)
    port, output = f"+head_server.port={free_port()}", tmp_path / "out.jsonl"
    run = ["ng_run", "+config_paths=[config.yaml]", "+num_workers=2", port]
    collect = [
        "ng_collect_rollouts",
        "+agent_name=agent",
        "+input_jsonl_fpath=rows.jsonl",
        f"+output_jsonl_fpath={output}",
        "+num_samples_in_parallel=4",
        port,
    ]
    with started(*run, cwd=tmp_path) as servers:
        servers.wait_for("servers ready!")
        with started(*collect, cwd=tmp_path) as collection:
            until_sync(lambda: collection.process.poll() is not None or (output.exists() and output.stat().st_size))
            os.kill(servers.process.pid, signal.SIGKILL)
            collection.wait_for("No worker with 'agent' is ready")
            collection.wait_for("Could not get the list of workers from the head server")
            with started(*run, cwd=tmp_path):
                collection.wait_for("A worker is ready again after")
                assert collection.wait() == 0, collection.text
    assert sorted(record["_task_index"] for record in rows_of(output)) == list(range(ROWS))
    (metrics,) = json.loads((tmp_path / "out_aggregate_metrics.json").read_text())  # of servers with other ports
    assert metrics["agent_metrics"]["own"] == ROWS
