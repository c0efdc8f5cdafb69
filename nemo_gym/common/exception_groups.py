"""Exception groups of task groups, unwrapped."""

from collections.abc import Iterator
from contextlib import contextmanager


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, at any depth, or the error itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error


@contextmanager
def raise_first_error() -> Iterator[None]:
    """Raise the first error of a group that leaves the block, in place of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise next(leaf_errors(group)) from group
