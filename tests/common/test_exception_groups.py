"""Errors of task groups reach the caller as themselves."""

import asyncio

import pytest

from nemo_gym.common.exceptions import leaf_errors, raise_first_error


async def fail(error: Exception) -> None:
    raise error


async def fail_in_groups() -> None:
    with raise_first_error():
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            inner.create_task(fail(KeyError("first")))
            outer.create_task(asyncio.sleep(10))


async def test_the_first_error_of_a_group_leaves_the_block() -> None:
    with pytest.raises(KeyError) as caught:
        await fail_in_groups()
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)


def test_leaves_are_found_at_any_depth() -> None:
    first, second = KeyError("a"), ValueError("b")
    assert list(leaf_errors(ExceptionGroup("x", [ExceptionGroup("y", [first]), second]))) == [first, second]
    assert list(leaf_errors(first)) == [first]


def test_any_other_error_passes_unchanged() -> None:
    with pytest.raises(KeyError) as caught, raise_first_error():
        raise KeyError("alone")
    assert caught.value.__cause__ is None
