"""Rows of tau2's telecom domain, from the package inspect-evals."""

import gzip
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from nemo_gym.data.hubs.pypi import Members, chosen_categories
from resources_servers.tau2.package import DOMAINS

ISSUES = ("mobile_data_issue", "mms_issue", "service_issue")
INSTRUCTIONS = """\
You work for a telecom company, alone on a ticket of a customer. You have the tools of the company and those of the
customer's phone, and nobody to ask. Follow the policy. Make one tool call at a time, and check that what the ticket
asks for is achieved. When you are done, say in one sentence what you did.

<main_policy>
{main}
</main_policy>

<tech_support_policy>
{support}
</tech_support_policy>"""


def rows(members: Members, category: str | None = None, split: str = "base") -> Iterator[dict[str, Any]]:
    """One row for each task of a split, for an agent who works alone. `rest` has all that are not in `base`."""
    chosen = chosen_categories(ISSUES, category)
    folder = f"{DOMAINS}/telecom"
    main, support = (
        members.read(f"{folder}/{name}").decode().strip()
        for name in ("main_policy_solo.txt", "tech_support_workflow_solo.txt")
    )
    splits = {name: set(ids) for name, ids in members.json(f"{folder}/split_tasks.json").items()}
    wanted = splits["full"] - splits["base"] if split == "rest" else splits[split]
    policy = INSTRUCTIONS.format(main=main, support=support)
    tasks = orjson.loads(gzip.decompress(members.read(f"{folder}/tasks.json.gz")))
    yield from (solo_row(task, policy) for task in tasks if task["id"] in wanted and issue_of(task["id"]) in chosen)


def issue_of(task_id: str) -> str:
    """The kind of issue, which the ID begins with in brackets."""
    return task_id.partition("]")[0].removeprefix("[")


def solo_row(task: Mapping[str, Any], policy: str) -> dict[str, Any]:
    criteria = task["evaluation_criteria"]
    is_judged_by_actions = "ACTION" in criteria["reward_basis"]
    fields = ("name", "arguments", "compare_args")
    return {
        "responses_create_params": {
            "input": [{"role": "system", "content": policy}, {"role": "user", "content": task["ticket"]}]
        },
        "id": task["id"],
        "category": issue_of(task["id"]),
        "beginning": task["initial_state"]["initialization_actions"],
        "assertions": criteria["env_assertions"] or [],
        "actions": [
            {name: each.get(name) for name in fields} for each in criteria["actions"] or () if is_judged_by_actions
        ],
    }
