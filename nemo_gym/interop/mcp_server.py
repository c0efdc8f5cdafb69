"""An environment as an MCP server on standard input and output, for any MCP client.

A process is one rollout of a row: the client calls tools, and when it closes the connection, the rollout is scored."""

import argparse
import asyncio
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import orjson

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.gateway.mcp import McpToolServer, ToolResult
from nemo_gym.interop.environment_host import EnvironmentHost, HostedEpisode, message_texts
from nemo_gym.llm_api.base import JsonObject


def serve(host: EnvironmentHost, row: JsonObject, reading: BinaryIO, writing: BinaryIO) -> JsonObject:
    """Answer a client until it disconnects, one message per line. Return the scored record."""
    episode = HostedEpisode(host, row)

    async def call(name: str, arguments: bytes) -> ToolResult:
        return await asyncio.to_thread(episode.call_tool, name, orjson.loads(arguments))

    task = "\n\n".join(message_texts(episode.messages))
    server = McpToolServer(host.name, episode.tools, call, instructions=task)
    for line in reading:
        reply = host.wait(server.reply(line)) if line.strip() else None
        if reply is not None:
            try:
                writing.write(reply + b"\n")
                writing.flush()
            except BrokenPipeError:
                break
    return episode.score()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nemo_gym.interop.mcp_server",
        description="Serve an environment's tools over MCP, on standard input and output, for one rollout of a row.",
    )
    parser.add_argument("config_paths", nargs="+", help="config files of the environment")
    parser.add_argument("--dataset", help="JSONL file with rows; by default the first dataset of the config")
    parser.add_argument("--row", type=int, default=0, help="which row to play, from 0")
    parser.add_argument("--output", type=Path, help="append the scored record to this file when the client is done")
    given = parser.parse_args()
    # Output of the environment must not mix with the messages.
    writing = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        output = given.output.open("ab") if given.output else nullcontext()
    except OSError as error:
        sys.exit(f"Cannot write to {given.output}: {error.strerror}.")
    try:
        # The record is written before the servers stop: a client may not give this process the time to do so.
        with EnvironmentHost(*given.config_paths) as host, output as file, suppress(BrokenPipeError), writing:
            rows = host.rows(given.dataset)
            if not 0 <= given.row < len(rows):
                raise ConfigError(f"There is no row {given.row}. The dataset has rows 0 to {len(rows) - 1}.")
            record = serve(host, rows[given.row], sys.stdin.buffer, writing)
            if file:
                file.write(orjson.dumps(record) + b"\n")
    except GymError as error:
        sys.exit(str(error))
    sys.stderr.write(f"reward: {record['reward']}\n")


if __name__ == "__main__":
    main()
