"""How much a rollout costs, on this machine, as a multiple of a bare HTTP request. Run it with `python -m bench`."""
