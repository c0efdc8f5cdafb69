"""The Berkeley Function Calling Leaderboard: calls of tools that are compared, and calls of stateful APIs that are
made."""

import ast
import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from pydantic import Field

from nemo_gym import JsonObject
from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    NextMessage,
    Score,
    SessionState,
    SimpleResourcesServer,
    ToolName,
    any_tool,
)
from nemo_gym.compute import Compute, LimitExceededError
from nemo_gym.llm_api.builders import calls
from nemo_gym.llm_api.responses import NeMoGymResponseFunctionToolCall, NeMoGymToolParam
from resources_servers.bfcl.apis import Apis
from resources_servers.bfcl.calls import Call, Language, is_right, parsed_call
from resources_servers.bfcl.gold import gold_calls

MAX_STEPS = 20
"""Replies with calls in one turn. More end the row as failed."""
CHECK_CPU_S = 5.0
NON_LIVE = ("multiple", "parallel", "parallel_multiple")


class BfclSeedSessionRequest(BaseSeedSessionRequest):
    category: str
    responses_create_params: dict[str, Any]
    ground_truth: list[Any] = Field(default_factory=list)
    initial_config: dict[str, Any] = Field(default_factory=dict)
    involved_classes: list[str] = Field(default_factory=list)


class Play(SessionState):
    """A row with several turns, as far as it was played."""

    apis: Apis | None = None
    answer: Apis | None = None
    """The same classes, on which the calls of the answer are made."""
    offered: set[str] = Field(default_factory=set)
    results: list[str] = Field(default_factory=list)
    calls_in_turn: int = 0
    turn: int = 0
    """How many turns are over."""
    failure: str | None = None


class BfclNextMessageRequest(BaseNextMessageRequest):
    turns: list[str] = Field(default_factory=list)
    added_tools: dict[str, list[NeMoGymToolParam]] = Field(default_factory=dict)
    ground_truth: list[list[str]] = Field(default_factory=list)


class BfclVerifyRequest(BaseVerifyRequest):
    category: str
    language: Language = "python"
    function: list[dict[str, Any]] = Field(default_factory=list)
    ground_truth: list[Any]


class BfclResourcesServer(SimpleResourcesServer):
    given_history = "refuse"

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a row whose answer nothing or anything would be."""
        is_empty = not row["ground_truth"]
        if is_empty != ("relevance" in row["category"]):
            raise ValueError(
                f"ground_truth of the category {row['category']} is {'empty' if is_empty else 'not empty'}"
            )

    async def seed_session(self, body: BfclSeedSessionRequest, play: Play) -> None:
        if not is_multi_turn(body.category):
            return

        def make() -> Apis:
            return Apis(body.involved_classes, body.initial_config, is_long="long_context" in body.category)

        play.apis = await asyncio.to_thread(make)  # the first one may download the package
        play.answer = make()
        play.offered = {tool["name"] for tool in body.responses_create_params.get("tools") or ()}

    @any_tool
    async def call(self, name: ToolName, body: dict[str, Any], play: Play) -> str:
        """Call a method of the row's classes."""
        if play.apis is None or name not in play.offered:
            return json.dumps({"error": f"There is no function '{name}'."})
        result = play.apis.call(name, named=body)
        play.results.append(result)
        play.calls_in_turn += 1
        return result

    async def next_message(self, body: BfclNextMessageRequest, play: Play) -> NextMessage | None:
        """Judge a turn that is over. The conversation ends with the last one, or with the first that failed."""
        if play.apis is None or play.answer is None or play.turn >= len(body.ground_truth):
            return None
        if steps_of(body.response.output) > MAX_STEPS:
            play.failure = "too many steps"
        else:
            play.failure = judged(play, play.apis, play.answer, body.ground_truth[play.turn])
        play.turn, play.calls_in_turn = play.turn + 1, 0
        if play.failure or play.turn > len(body.turns):
            return None
        added = body.added_tools.get(str(play.turn), [])
        play.offered |= {str(tool.get("name")) for tool in added}
        return NextMessage(content=body.turns[play.turn - 1], added_tools=added)

    async def verify(self, body: BfclVerifyRequest, play: Play, compute: Compute) -> Score:
        """`failure` says why a row with several turns failed."""
        if is_multi_turn(body.category):
            failure = play.failure or ("unfinished" if play.turn < len(body.ground_truth) else None)
            return Score(float(failure is None), category=body.category, failure=failure, turns_played=play.turn)
        items = [each for each in body.response.output if isinstance(each, NeMoGymResponseFunctionToolCall)]
        made = [parsed_call(item.name, item.arguments) for item in items]
        if "relevance" in body.category:
            is_wanted = "irrelevance" not in body.category
            passed = any(made) if is_wanted else not items
        else:
            passed = None not in made and await _is_right(body, [each for each in made if each], compute)
        return Score(float(passed), category=body.category)

    def compute_metrics(self, tasks: list[list[JsonObject]]) -> JsonObject:
        """The mean of each category, and the leaderboard's scores of groups that are complete."""
        rewards = defaultdict[str, list[float]](list)
        for record in (record for task in tasks for record in task):
            rewards[record["category"]].append(record["reward"])
        means = {name: fmean(each) for name, each in rewards.items()}
        return {**{f"category/{name}": mean for name, mean in sorted(means.items())}, **_groups(means, rewards)}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        own = ("mean/reward", "category/", "leaderboard/")
        return {name: value for name, value in agent_metrics.items() if name.startswith(own)}

    @classmethod
    def gold_response(cls, row: JsonObject) -> str | list[JsonObject] | None:
        if is_multi_turn(row["category"]):
            return None  # its calls are made in turns
        if row["category"] == "live_relevance":
            first = row["responses_create_params"]["tools"][0]["name"]
            return [calls(first)]
        found = [calls(each.name, each.arguments) for each in gold_calls(row)]
        return found or "None of the functions can do that."


def is_multi_turn(category: str) -> bool:
    return category.startswith("multi_turn")


async def _is_right(body: BfclVerifyRequest, made: list[Call], compute: Compute) -> bool:
    """Compare calls: of Python here, of other languages, whose literals are parsed, in a process with a time limit."""
    arguments = (made, body.function, body.ground_truth, body.category, body.language)
    if body.language == "python":
        return is_right(*arguments)
    try:
        return bool(await compute.run(is_right, *arguments, timeout_s=CHECK_CPU_S))
    except LimitExceededError:
        return False


def judged(play: Play, apis: Apis, answer: Apis, wanted: list[str]) -> str | None:
    """Why a turn failed; None if it did not. A turn without an expected call is not judged."""
    expected = [run_call(answer, call) for call in wanted]
    if not wanted:
        return None
    if not play.calls_in_turn:
        return "no call"
    try:
        if apis.state() != answer.state():
            return "another state"
    except RecursionError:
        return "another state"
    return "a result is missing" if Counter(expected) - Counter(play.results) else None


def run_call(apis: Apis, text: str) -> str:
    """Make a call of an answer, which is a text such as `cd(folder='document')`."""
    node = ast.parse(text.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{text!r} in ground_truth is no call")
    named = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    return apis.call(node.func.id, [ast.literal_eval(each) for each in node.args], named)


def steps_of(items: Iterable[Any]) -> int:
    """The number of replies with calls."""
    kinds = ["call" if isinstance(each, NeMoGymResponseFunctionToolCall) else each.type for each in items]
    return sum(kind == "call" and before != "call" for before, kind in zip(["", *kinds], kinds, strict=False))


def _groups(means: dict[str, float], rewards: dict[str, list[float]]) -> JsonObject:
    """The scores of the leaderboard's groups."""
    found: JsonObject = {}
    simple = [name for name in means if name.startswith("simple_")]
    if len(simple) == 3 and all(name in means for name in NON_LIVE):
        found["leaderboard/non_live"] = fmean([fmean(means[name] for name in simple), *(means[n] for n in NON_LIVE)])
    live = [name for name in means if name.startswith("live_") and "relevance" not in name]
    if len(live) == 4:
        found["leaderboard/live"] = fmean(reward for name in live for reward in rewards[name])
    if "irrelevance" in means and "live_irrelevance" in means:
        found["leaderboard/irrelevance"] = fmean(means[name] for name in ("irrelevance", "live_irrelevance"))
    turns = [mean for name, mean in means.items() if is_multi_turn(name)]
    if len(turns) == 4:
        found["leaderboard/multi_turn"] = fmean(turns)
    return found


if __name__ == "__main__":
    BfclResourcesServer.run_webserver()
