"""The plain tool-calling loop: ask the model, run the tools it calls, ask again, until it answers.

All of it is in the base class, which other agents build on."""

from nemo_gym.base_responses_api_agent import AgentRunRequest, ToolCallingAgent, ToolCallingAgentConfig

SimpleAgentConfig = ToolCallingAgentConfig
SimpleAgentRunRequest = AgentRunRequest


class SimpleAgent(ToolCallingAgent):
    """One turn of the model for each row."""
