"""Second names of environments."""

FOLDER_ALIASES = {
    "resources_servers/example_session_state_mgmt": "resources_servers/example_stateful_counter",
    "resources_servers/example_single_tool_call": "resources_servers/example_simple_weather",
    "resources_servers/multineedle": "resources_servers/example_multi_step",
}
"""Server folders with an older or newer name. A path under the alias is found in the folder itself; only a config with
other server names needs its own file there."""
