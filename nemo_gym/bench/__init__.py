"""The capacity simulator: the real commands against a simulated model endpoint, and what saturates first."""
