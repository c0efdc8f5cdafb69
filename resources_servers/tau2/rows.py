"""Rows of tau2 from the package inspect-evals."""

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from nemo_gym.data.hubs.pypi import Members, chosen_categories
from resources_servers.tau2.domains import agent_tools, user_tools
from resources_servers.tau2.goal import Domain
from resources_servers.tau2.package import DOMAINS

ISSUES = ("mobile_data_issue", "mms_issue", "service_issue")
SOLO_INSTRUCTIONS = """\
You work for a telecom company, alone on a ticket of a customer. You have the tools of the company and those of the
customer's phone, and nobody to ask. Follow the policy. Make one tool call at a time, and check that what the ticket
asks for is achieved. When you are done, say in one sentence what you did."""
INSTRUCTIONS = """\
You serve customers. Help the user as the policy below allows, and follow it always. In each step either write to the
user or call a tool, never both."""
MARKERS = ("###TRANSFER###", "###OUT-OF-SCOPE###")
"""The user also ends a conversation with these. They mean the same to the score, so one marker is enough."""
STOP_MARKER = "###STOP###"
GUIDELINES = "inspect_evals/tau2/data/user_simulator/simulation_guidelines"
MAX_TURNS = 100


def rows(
    members: Members,
    category: str | None = None,
    split: str = "base",
    domain: Domain = "telecom",
    mode: Literal["solo", "user"] = "user",
) -> Iterator[dict[str, Any]]:
    """One row for each task of a split. `rest` has all that are not in `base`."""
    is_solo = mode == "solo"
    chosen = chosen_categories(ISSUES if domain == "telecom" else [domain], category)
    folder = f"{DOMAINS}/{domain}"
    splits = {name: set(ids) for name, ids in members.json(f"{folder}/split_tasks.json").items()}
    wanted = splits["full"] - splits["base"] if split == "rest" else splits[split]
    system = {"role": "system", "content": policy_of(members, domain, is_solo=is_solo)}
    template = None if is_solo else template_of(members, domain)
    for task in tasks_of(members, domain):
        kind = category_of(task, domain)
        if task["id"] in wanted and kind in chosen:
            row = {"id": task["id"], "category": kind, "domain": domain, **goal_of(task, domain)}
            if template is None:
                yield {"responses_create_params": {"input": [system, user_message(task["ticket"])]}, **row}
            else:
                params = {"input": [system], "tools": agent_tools(domain)}
                yield {"responses_create_params": params, **row, "user": user_of(task, domain, template)}


def tasks_of(members: Members, domain: Domain) -> list[dict[str, Any]]:
    name = f"{DOMAINS}/{domain}/tasks.json"
    found: list[dict[str, Any]] = (
        json.loads(gzip.decompress(members.read(f"{name}.gz"))) if domain == "telecom" else members.json(name)
    )
    return found


def category_of(task: Mapping[str, Any], domain: Domain) -> str:
    """The kind of issue, which the IDs of telecom begin with in brackets."""
    return str(task["id"]).partition("]")[0].removeprefix("[") if domain == "telecom" else domain


def user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def policy_of(members: Members, domain: Domain, *, is_solo: bool) -> str:
    """What the agent is told."""
    kind = "_solo" if is_solo else ""
    files = {"main_policy": f"main_policy{kind}", "tech_support_policy": f"tech_support_{SUPPORT[is_solo]}"}
    files = files if domain == "telecom" else {"policy": "policy"}
    texts = {tag: members.read(f"{DOMAINS}/{domain}/{name}.txt").decode().strip() for tag, name in files.items()}
    parts = (f"<{tag}>\n{text}\n</{tag}>" for tag, text in texts.items())
    return "\n\n".join([SOLO_INSTRUCTIONS if is_solo else INSTRUCTIONS, *parts])


SUPPORT = {True: "workflow_solo", False: "manual"}


def goal_of(task: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
    criteria = task["evaluation_criteria"]
    has_actions = domain != "telecom" or "ACTION" in criteria["reward_basis"]
    fields = ("name", "arguments", "compare_args")
    return {
        "beginning": (task["initial_state"] or {}).get("initialization_actions") or [],
        "assertions": criteria.get("env_assertions") or [],
        "actions": [{name: each.get(name) for name in fields} for each in criteria["actions"] or () if has_actions],
        "communicate": criteria["communicate_info"] or [],
    }


def template_of(members: Members, domain: Domain) -> str:
    """What the user model is told: the guidelines of the package, and the scenario."""
    kind = "_tools" if domain == "telecom" else ""
    guidelines = members.read(f"{GUIDELINES}{kind}.txt").decode().strip()
    for marker in MARKERS:
        guidelines = guidelines.replace(marker, STOP_MARKER)
    return f"{guidelines}\n\n<scenario>\n{{persona}}\n</scenario>"


def user_of(task: Mapping[str, Any], domain: Domain, template: str) -> dict[str, Any]:
    return {
        "persona": persona_of(task["user_scenario"]),
        "template": template,
        "stop_marker": STOP_MARKER,
        "max_turns": MAX_TURNS,
        "tools": user_tools(domain),
    }


def persona_of(scenario: Mapping[str, Any]) -> str:
    """Who the user is, why they call, what they know and how they behave."""
    told = scenario["instructions"]
    parts = {
        "Who you are": scenario["persona"],
        "Why you call": told["reason_for_call"],
        "What you know": told["known_info"],
        "What you do not know": told["unknown_info"],
        "How you behave": told["task_instructions"],
    }
    return "\n\n".join(f"{name}:\n{text.strip()}" for name, text in parts.items() if text)
