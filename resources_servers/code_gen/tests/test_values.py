"""What the value of a function counts as. The program that made it is hostile: it cannot say what its value equals."""

from collections.abc import AsyncIterator

import pytest

from nemo_gym.testing import BrowserLikeClient, client_for
from resources_servers.code_gen.app import CodeGenResourcesServer
from resources_servers.code_gen.tests.test_app import fenced, row, verified


@pytest.fixture
async def environment() -> AsyncIterator[BrowserLikeClient]:
    async with client_for(CodeGenResourcesServer, warm_sandboxes=1) as client:
        yield client


KINDS_OF_VALUES = """
import numbers
import numpy as np
from enum import IntEnum
from fractions import Fraction
class List(list): pass
class Name(str): pass
class Colour(IntEnum): RED = 1
Pair = namedtuple("Pair", "a b")
class Anything:
    def __eq__(self, other): return True
    def __hash__(self): return 3
class AnyList(Anything, list): pass
class AnyInt(Anything, int): pass
class AnyText(Anything, str): pass
class AnyNumber(Anything):
    numerator, denominator = Anything(), 1
numbers.Rational.register(AnyNumber)
class Disguised(Anything):
    __class__ = list
"""


@pytest.mark.parametrize(
    ("value", "expected", "reward"),
    [
        ("np.sum(np.array([1, 2]))", "3", 1.0),
        ("[np.int64(1), np.float32(0.5), np.bool_(True)]", "[1, 0.5, true]", 1.0),
        ("{np.str_('a'): np.array([1, 2]).tolist()}", '{"a": [1, 2]}', 1.0),
        ("List([1, 2])", "[1, 2]", 1.0),
        ("Pair(1, 2)", "[1, 2]", 1.0),
        ("[Pair(1, 2)]", "[[1, 2]]", 0.0),
        ("Counter('aab')", '{"a": 2, "b": 1}', 1.0),
        ("[Name('a'), Colour.RED]", '["a", 1]', 1.0),
        ("[Fraction(6, 2), Fraction(1, 2)]", "[3, 0.5]", 1.0),
        ("Fraction(1, 3)", "0.3333333333333333", 0.0),
        ("np.int64(4)", "3", 0.0),
        ("np.array([3])", "[3]", 0.0),
        ("1j", "1", 0.0),
        ("Anything()", "3", 0.0),
        ("[Anything()]", "[3]", 0.0),
        ("AnyList()", "[3]", 0.0),
        ("AnyInt(4)", "3", 0.0),
        ("AnyText('a')", '"b"', 0.0),
        ("AnyNumber()", "3", 0.0),
        ("Disguised()", "[3]", 0.0),
    ],
)
async def test_a_value_counts_as_what_it_equals_whatever_it_says_of_itself(
    environment: BrowserLikeClient, value: str, expected: str, reward: float
) -> None:
    code = f"{KINDS_OF_VALUES}\ndef solve(_): return {value}"
    record = await verified(environment, row(fenced(code), ["1"], [expected], "solve"))
    assert record["reward"] == reward, record["metadata"]
