import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_api_models.local_model.log_probs import align


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_a_token_is_only_given_a_place_that_is_certainly_its_own(tokens: list[tuple[int, bool]]) -> None:
    ids = [token for token, _ in tokens]
    true_places = [place for place, (_, is_reported) in enumerate(tokens) if is_reported]
    found = align([ids[place] for place in true_places], ids)
    assert len(found.places) == len(true_places)
    assert all(place in (None, true) for place, true in zip(found.places, true_places, strict=True))
    if len(true_places) == len(ids):
        assert (found.places, found.end) == (true_places, len(ids))


@pytest.mark.parametrize(
    ("reported", "ids", "places", "end"),
    [
        ([], [], [], 0),
        ([], [7], [], 0),
        ([1, 4], [1, 2, 3, 4], [0, 3], 4),
        ([1, 1], [1, 2, 1], [0, 2], 3),
        ([1], [1, 2, 1], [None], 1),
    ],
)
def test_reported_tokens_are_found(reported: list[int], ids: list[int], places: list[int | None], end: int) -> None:
    assert align(reported, ids) == (places, end)


def test_a_token_that_was_not_generated_is_an_error() -> None:
    with pytest.raises(ValueError, match="not in"):
        align([5], [1, 2])
