"""What can go wrong with a sandbox itself. What goes wrong inside one is a result, never an exception."""

from nemo_gym.errors import GymError


class SandboxError(GymError, RuntimeError):
    """A sandbox failed."""


class SandboxCreateError(SandboxError):
    """A sandbox could not be created."""


class SandboxUnavailableError(SandboxCreateError):
    """This machine, or this configuration, offers no sandbox that may be used."""


class SandboxCreateVerificationError(SandboxCreateError):
    """A sandbox was created, but its probe command did not give what was expected."""


class SandboxPtyError(SandboxError):
    """A pseudo-terminal could not be had."""
