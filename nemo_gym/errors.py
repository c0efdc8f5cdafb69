"""Everything raised on purpose. Each error survives pickling, so a trainer in another process can read it."""

from typing import Any, Literal, get_args

Cause = Literal["model", "tool", "verifier", "judge", "environment", "timeout", "input", "internal"]
"""Why a rollout has no result, named for the boundary that failed."""

CAUSES: tuple[Cause, ...] = get_args(Cause)


class GymError(Exception):
    """The root of the tree."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[GymError], args: tuple[Any, ...], state: dict[str, Any]) -> GymError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(GymError, ValueError):
    """The configuration does not say something that can be run."""


class MissingPathError(ConfigError, FileNotFoundError):
    """A file or folder that the user named is nowhere we look."""


class PortError(ConfigError, OSError):
    """A port cannot be had."""


class MissingExtraError(GymError):
    """A part of the package that is an optional install was asked for."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part. Install it with: pip install 'nemo-gym[{extra}]'")


class StartupError(GymError, RuntimeError):
    """A server could not be started, or ended while others depend on it."""


class HeadServerError(GymError, ValueError):
    """No head server answers where one was expected."""


class StorageError(GymError):
    """What was made cannot be written."""


class UpstreamError(GymError):
    """Another server or a model endpoint answered badly, or not at all (status 0)."""

    def __init__(
        self, server: str, status: int, body: str, *, cause: Cause | None = None, retry_after_s: float | None = None
    ) -> None:
        answered = f"answered {status}" if status else "did not answer"
        super().__init__(f"{server} {answered}: {body[:500]}")
        self.server, self.status, self.body = server, status, body
        self.cause, self.retry_after_s = cause, retry_after_s


class RolloutError(GymError):
    """A rollout ended without a result. `cause` says at which boundary, `server` which one of the servers, and `kind`,
    where it is known, what kind of failure it was."""

    def __init__(self, cause: Cause, message: str, *, server: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.cause: Cause = cause
        self.server = server
        self.kind = kind


class SessionError(GymError):
    """A session token was not made by this run, or names a session of another worker."""
