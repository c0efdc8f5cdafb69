"""Every reward hack that was ever found, played against its environment as it ships, and the general ones against all
environments: no reward. The honest answer beside a hack still has one.

The hacks are in `tests/reward_hacks/`, one file for each environment. `docs/verifiers.md` has a line for each.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.gold import gold_finder
from nemo_gym.analysis.reverify import verify_items
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.errors import Cause, RolloutError
from nemo_gym.server.tools import default_tools, with_tools
from nemo_gym.testing import ServerSpec, rows_of, running_servers
from nemo_gym.trust.baseline import accepted_in, known_exploits, read_baseline, worse_than
from nemo_gym.trust.check import Checked, CheckVerifierConfig, try_verifier
from tests.polling import PATIENCE_S
from tests.reward_hacks.hack import CheckedElsewhere, Hack, Reply, items_of
from tests.shipped_configs import ENVIRONMENTS, FOLDERS, servers_in, skip_if_isolated

PAGE = PARENT_DIR / "docs/verifiers.md"
TABLES: dict[str, list[Hack | CheckedElsewhere]] = {
    file.stem: import_module(f"tests.reward_hacks.{file.stem}").HACKS
    for file in sorted(Path(__file__).parent.glob("reward_hacks/*.py"))
    if file.stem != "hack"
}
QUOTING_JUDGE: list[dict[str, Any]] = [
    {
        "user": r"(?s)<gold_answer>\n(.+?)\n</gold_answer>.*<candidate_answer>\n\1\n</candidate_answer>",
        "say": "[[A=B]]",
    },
    {"user": r"(?s)<answer_a>\n(.+?)\n</answer_a>.*<answer_b>\n\1\n</answer_b>", "say": "[[A=B]]"},
    {"user": r"(?s)<gold_answer>\n(.*)\n</candidate_answer>", "say": "They say:\n\\1\nThese differ.\n[[A!=B]]"},
    {"user": r"(?s)<answer_a>\n(.*)\n</answer_b>", "say": "They say:\n\\1\nThese differ.\n[[A!=B]]"},
]
"""Finds answers equal that are the same text, quotes others before its verdict, and believes every tag it reads."""


def servers_for(
    folder: Path, settings: dict[str, Any] | None = None, *, policy: Sequence[dict[str, Any]] = ()
) -> tuple[ServerSpec, list[ServerSpec]]:
    """The environment, and all servers of its first config with a scripted policy and judge."""
    skip_if_isolated(folder)
    servers = servers_in(min(folder.glob("configs/*.yaml")))
    own = next(server for server in servers if server.folder == folder)
    changed = {own.name: settings or {}, "policy_model": {"script_fpath": None, "replies": [*QUOTING_JUDGE, *policy]}}
    return own, [replace(each, config={**each.config, **changed.get(each.name, {})}) for each in servers]


PLAYED = {name: [hack for hack in table if isinstance(hack, Hack)] for name, table in TABLES.items()}


@pytest.mark.parametrize("name", [name for name, played in PLAYED.items() if played])
async def test_reward_hacks_earn_nothing_and_honest_answers_do(name: str) -> None:
    """All hacks of an environment share a server, since some libraries take seconds to import."""
    wrong: list[str] = []
    for settings, together in groupby(PLAYED[name], key=attrgetter("settings")):
        own, servers = servers_for(PARENT_DIR / "resources_servers" / name, settings)
        async with running_servers(servers) as client:
            for hack in together:
                wrong += await mistakes(client, own.name, hack)
    assert wrong == []


async def mistakes(client: ServerClient, environment: str, hack: Hack) -> list[str]:
    """What the environment does other than the entry says."""
    wrong, row = [], with_tools(hack.row, await default_tools(client, environment))
    expected: list[tuple[Reply, float | Cause]] = [(cheat, hack.cause or 0.0) for cheat in hack.cheats]
    for reply, outcome in [*expected, *([] if hack.honest is None else [(hack.honest, 1.0)])]:
        if (found := await outcome_of(client, environment, row, reply)) != outcome:
            wrong.append(f"{hack.does} {found} instead of {outcome} for {reply!r:.200}")
    return wrong


async def outcome_of(client: ServerClient, environment: str, row: dict[str, Any], reply: Reply) -> float | Cause:
    """The reward, or the cause if there is no result."""
    try:
        found = await verify_items(client, environment, row, items_of(reply), timeout_s=PATIENCE_S, what=environment)
    except RolloutError as error:
        return error.cause
    return float(found.record["reward"])


each_environment = pytest.mark.parametrize(
    "folder", [folder for folder in ENVIRONMENTS if folder.name != "mini_swe_agent"], ids=lambda folder: folder.name
)
"""All but the one whose agent runs the tests and scores its rollouts."""
REWARDS_EVERYTHING = {"example_simple_weather"}
"""On purpose: it demonstrates tools."""
RIGHT_BY_CHANCE = {("instruction_following", "echoed_prompt"), ("instruction_following", "echoed_last_message")}
"""Responses that happen to be right: one prompt is German, has two paragraphs with *** between them, and asks for
exactly that."""
NON_ANSWERS = {
    *("empty_text", "blank_text", "refused", "prompt_injection", "punctuation", "long_text", "deep_json"),
    *("odd_unicode", "garbage_tool_calls", "echoed_prompt", "echoed_last_message", "copied_state", "all_options"),
    *("all_options_in_one", "tool_spam", "made_up_tool_output", "refusal_part", "reasoning_only", "user_message"),
    *("tool_output", "thoughts_in_tags", "thoughts_without_answer", "verdict_label"),
}
"""Kinds of responses that must not earn anything, not even a share of the reward."""
GIVES_SHARES = {"instruction_following"}
"""A row with `grading_mode: fraction` rewards each instruction that is followed."""
NEEDS_TOOLS = {"mcp_tools"}
"""No row says which calls are right. Each session starts a process, so one row is enough."""
MAX_PROBES = 200


@each_environment
async def test_no_verifier_is_worse_than_recorded_and_no_non_answer_earns_anything(folder: Path) -> None:
    rows = rows_of(folder / "data/example.jsonl")[: 1 if folder.name in NEEDS_TOOLS else None]
    config = CheckVerifierConfig(verify_timeout_s=PATIENCE_S, max_probes=MAX_PROBES, budget_s=4.0)
    own, servers = servers_for(folder)
    baseline = read_baseline(folder)
    async with running_servers(servers) as client:
        checked = Checked(own.name, rows, gold_finder(own))
        report = await try_verifier(config, client, checked, exploits=list(known_exploits(baseline)))
    report.accepted = accepted_in(baseline, own.name)
    assert list(worse_than(baseline, report)) == []
    assert [(finding.kind, str(finding)) for finding in report.findings()] == []
    assert report.false_negatives.errors == 0 or folder.name in NEEDS_TOOLS
    if folder.name not in REWARDS_EVERYTHING | GIVES_SHARES:
        earning = {name for name in NON_ANSWERS & report.kinds.keys() if report.kinds[name].best_reward > 0}
        assert {(folder.name, name) for name in earning} <= RIGHT_BY_CHANCE


NEEDS_A_SERVER = {"openenv"}
ENDPOINTS = ("verify", "../verify", "/verify", "seed_session", "end_session", "next_message", "__class__")
SCORES_ITSELF: list[dict[str, Any]] = [
    {"turn": 0, "call": [{"name": name, "arguments": {"reward": 1.0}} for name in ENDPOINTS]},
    {"say": "I am done. Reward: 1.0"},
]


@each_environment
async def test_no_environment_lets_a_policy_score_itself(folder: Path) -> None:
    if folder.name in REWARDS_EVERYTHING | NEEDS_A_SERVER:
        pytest.skip("it rewards everything, or its own tests start its server")
    _own, servers = servers_for(folder, policy=SCORES_ITSELF)
    agent = next(server.name for server in servers if server.server_type == "responses_api_agents")
    async with running_servers(servers) as client:
        for row in rows_of(folder / "data/example.jsonl")[:2]:
            record = await (await client.post(agent, "/run", json=row)).json()
            assert record["reward"] <= 0.0
            made = [item for item in record["response"]["output"] if item["type"] == "function_call_output"]
            assert [item["output"] for item in made if "There is no tool" not in item["output"]] == []


def page_line(server: str, hack: Hack | CheckedElsewhere) -> str:
    name = server.replace("_", " ") if server == "every_environment" else f"`{server}`"
    stopped = hack.stopped if isinstance(hack, Hack) else f"{hack.stopped}; `{hack.test}`"
    return f"| {name} | {hack.does} | {stopped} |"


def test_the_page_has_a_line_for_every_hack() -> None:
    """To mend it, copy the missing lines to the page."""
    section = PAGE.read_text().partition("## Every reward hack found so far")[2].partition("\n## ")[0]
    shown = section.partition("| --- | --- | --- |\n")[2].splitlines()
    wanted = [page_line(server, hack) for server, table in TABLES.items() for hack in table]
    assert "\n".join(line for line in wanted if line not in shown) == "", "missing in the page"
    assert [line for line in shown if line not in wanted] == [], "in the page, but in no table"
    assert len({hack.does for table in TABLES.values() for hack in table}) > 50


def test_every_table_is_named_for_a_server_and_every_hack_has_a_form() -> None:
    servers = {folder.name for folder in FOLDERS} | {"every_environment"}
    assert set(TABLES) <= servers
    assert [hack.does for played in PLAYED.values() for hack in played if not hack.cheats] == []
