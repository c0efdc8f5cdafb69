"""Deterministic simulation: the product's own code on a virtual clock, network and disk, with faults from one seed.

Read `docs/simulation.md` first. `world` has the clock and the processes, `network` and `disk` the edges, `edges` puts
them in the place of Python's own, `servers` has the environment and the endpoint, `scenario` plays one seed and checks
the invariants, `__main__` is the command."""
