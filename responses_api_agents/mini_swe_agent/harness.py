"""The loop of the agent: ask the model, run the one command it gives, show it the output, until it submits."""

import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from nemo_gym.sandbox import AsyncSandbox, SandboxExecResult

FINAL_MARKER = "MINI_SWE_AGENT_FINAL_OUTPUT"
MAX_OUTPUT_CHARS = 10_000
BLOCK = re.compile(r"```bash[ \t]*\n(.*?)\n?```", re.DOTALL)

SYSTEM = """\
You work in a shell, one command at a time. Every reply must hold a short thought and exactly one command, in
one block that is fenced as ```bash. The command runs in a fresh shell in the folder of the repository; you then get
its return code and its output."""

TASK = """\
Solve this issue of the repository in the current folder:

<issue>
{problem_statement}
</issue>

Read the code, find the cause, change the source so that the issue is solved for every input, and check your change. Do
not change the tests: others will be run. Use commands that end by themselves; there is no editor and no network.

When you are done, submit with this command, alone:

```bash
echo {marker} && git add -A && git diff --cached
```
Nothing can be changed after that."""

Ending = Literal["submitted", "step_limit", "cost_limit", "collapsed", "model_refused"]
Message = dict[str, Any]
Ask = Callable[[list[Message]], Awaitable[Message | None]]
"""The model: the reply to a conversation, with whatever else it brings (token ids, its `cost`); None if it takes no
more."""
Run = Callable[[str], Awaitable[SandboxExecResult]]


@dataclass(slots=True)
class Conversation:
    messages: list[Message]
    ending: Ending = "step_limit"
    patch: str = ""
    """The patch that the model submitted."""
    steps: int = 0
    cost: float = 0.0
    """The cost of all model calls, in dollars."""


@dataclass(slots=True)
class RepeatedCommand:
    """Counts the same command in a row."""

    limit: int
    last: str | None = None
    count: int = field(default=0)

    def see(self, command: str) -> int:
        self.count = self.count + 1 if command == self.last else 1
        self.last = command
        return self.count if self.limit else 0


def first_messages(problem_statement: str) -> list[Message]:
    task = TASK.format(problem_statement=problem_statement, marker=FINAL_MARKER)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]


async def converse(
    start: list[Message], ask: Ask, run: Run, *, step_limit: int, collapse_limit: int, cost_limit: float = math.inf
) -> Conversation:
    """One attempt at an issue."""
    talk, repeated = Conversation(list(start)), RepeatedCommand(collapse_limit)
    while talk.steps < step_limit:
        if talk.cost >= cost_limit:
            talk.ending = "cost_limit"
            return talk
        talk.steps += 1
        reply = await ask(talk.messages)
        if reply is None:
            talk.ending = "model_refused"
            return talk
        talk.messages.append({**reply, "role": "assistant"})
        talk.cost += float(reply.get("cost") or 0.0)
        commands = BLOCK.findall(str(reply.get("content") or ""))
        if len(commands) != 1:
            _say(talk, format_error(len(commands)))
            continue
        count = repeated.see(commands[0].strip())
        if collapse_limit and count > collapse_limit:
            talk.ending = "collapsed"
            return talk
        if collapse_limit and count == collapse_limit:
            _say(talk, f"You gave the same command {count} times in a row. Do something else, or the attempt ends.")
            continue
        result = await run(commands[0])
        patch = submitted(result)
        if patch is not None:
            talk.ending, talk.patch = "submitted", patch
            _say(talk, patch)
            return talk
        _say(talk, observation(result))
    return talk


def _say(talk: Conversation, text: str) -> None:
    talk.messages.append({"role": "user", "content": text})


def format_error(found: int) -> str:
    return f"Expected exactly one command in a ```bash block, found {found}. Reply again with one block."


def submitted(result: SandboxExecResult) -> str | None:
    """The patch, if the first line of the output that is not blank is the marker."""
    if result.error_type is not None:
        return None
    first, _, rest = (result.stdout or "").lstrip().partition("\n")
    return rest if first.strip() == FINAL_MARKER else None


def observation(result: SandboxExecResult) -> str:
    """Return the message to the model about the result of a command."""
    output = shortened(result.stdout or "")
    if result.error_type == "timeout":
        return f"The command took too long and was ended. Its output so far:\n<output>\n{output}</output>"
    if result.error_type is not None:
        return f"The command could not be run: {result.stderr}"
    return f"<returncode>{result.return_code}</returncode>\n<output>\n{output}</output>"


def shortened(output: str) -> str:
    if len(output) < MAX_OUTPUT_CHARS:
        return output
    half = MAX_OUTPUT_CHARS // 2
    note = f"[{len(output) - 2 * half} characters left out; ask for less]"
    return f"{output[:half]}\n{note}\n{output[-half:]}"


def command_runner(box: AsyncSandbox, *, timeout_s: float, prefix: str = "") -> Run:
    """Runs commands in a container, with standard error in standard output."""

    async def run(command: str) -> SandboxExecResult:
        return await box.exec(f"exec 2>&1\n{prefix}{command}", timeout_s=timeout_s)

    return run
