"""A harness of a few lines around the package `openai-agents`: one agent with the environment's tools over MCP."""

import asyncio
import os
import sys

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp


async def main(prompt: str, instructions: str) -> None:
    set_tracing_disabled(True)
    async with MCPServerStreamableHttp(params={"url": os.environ["NEMO_GYM_MCP_URL"]}) as tools:
        agent = Agent(
            name="assistant", instructions=instructions, model=os.environ["NEMO_GYM_MODEL"], mcp_servers=[tools]
        )
        result = await Runner.run(agent, prompt, max_turns=50)
        sys.stdout.write(f"{result.final_output}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
