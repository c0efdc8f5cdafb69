"""Code that runs inside a sandbox: the agent process that starts commands and enforces limits.

Nothing here imports the rest of the package or slow modules: this code is sent to a bare interpreter
(`python -I -S`), whose start-up time is part of every cold sandbox."""
