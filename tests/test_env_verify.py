import pytest

from bench.env_verify import MEASURED, cpu_ms_per_verify


@pytest.mark.parametrize("name", MEASURED)
async def test_scoring_is_measured(name: str) -> None:
    assert await cpu_ms_per_verify(name, count=10) > 0
