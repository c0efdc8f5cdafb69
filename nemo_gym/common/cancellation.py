"""Tell a task that is meant to end from one whose code has failed."""

import asyncio


def is_meant_for_task(error: BaseException) -> bool:
    """True if `error` is to end the running task: somebody cancels it, or interrupts the process.

    Code can raise CancelledError although nobody cancels its task: it awaits a task that several rollouts share, and
    the timeout of one of them cancels that. Then it has failed, as with any other exception, and so has code that
    raises SystemExit.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)
