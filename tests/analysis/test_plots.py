"""Plots are SVG that parses, with what they were given."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.analysis.compare import CompareConfig, draw_comparison
from nemo_gym.analysis.profile import (
    MAX_POINTS,
    ProfileConfig,
    Sample,
    bars,
    curve,
    draw_panels,
    histogram,
    profile_rollouts,
    scatter,
)
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.testing import example_row, running_servers
from tests.jsonl import write_lines
from tests.stacks import counter, scripted_servers

SVG = "{http://www.w3.org/2000/svg}"
finite = st.floats(-1e6, 1e6)


def elements(text: str, kind: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(text).iter(f"{SVG}{kind}") if each.get("class") != "frame"]


@given(st.lists(finite, min_size=1, max_size=50))
def test_a_histogram_counts_every_value(values: list[float]) -> None:
    titles = [each.findtext(f"{SVG}title") or "" for each in elements(draw_panels([histogram("r", values)]), "rect")]
    assert sum(int(title.rpartition(": ")[2]) for title in titles) == len(values)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20))
def test_points_stay_inside_their_panel(points: list[tuple[float, float]]) -> None:
    drawn = elements(draw_panels([scatter("<&>", points, unit="tokens")]), "circle")
    assert len(drawn) == len(points)
    assert all(0 <= float(each.get("cx") or -1) <= 420 and 0 <= float(each.get("cy") or -1) <= 250 for each in drawn)


def test_panels_are_beside_and_below_each_other() -> None:
    text = draw_panels([curve("pass@k", [(1, 0.2), (2, 0.4)]), bars("t", [("model", 2.0, "2 s")]), bars("u", [])])
    assert [each.get("transform") for each in elements(text, "g")] == [
        *("translate(0 0)", "translate(420 0)", "translate(0 250)")
    ]


@pytest.mark.parametrize("count", [10, MAX_POINTS * 5])
def test_a_sample_is_bounded_and_spread(count: int) -> None:
    sample = Sample()
    for number in range(count):
        sample.add(number, 0)
    assert min(count, MAX_POINTS // 2) <= len(sample.points) <= MAX_POINTS
    assert sample.points[-1][0] >= count * 0.9 - 1


async def test_a_profile_of_a_collection_has_all_four_plots_and_the_hardest_rows(tmp_path: Path) -> None:
    rows = [example_row(f"add {number}", initial_count=0, expected_count=number % 2) for number in range(4)]
    paths = {"input_jsonl_fpath": str(write_lines(tmp_path / "rows.jsonl", rows))}
    servers = scripted_servers(counter(), [{"say": "Done."}])
    collected = {"agent_name": "agent", "num_repeats": 2, "output_jsonl_fpath": str(tmp_path / "rollouts.jsonl")}
    async with running_servers(servers) as client:
        config = RolloutCollectionConfig.model_validate({**paths, **collected})
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
    assert metrics.stages["model"]["requests"] == 8
    profile = {
        "rollouts_jsonl_fpath": collected["output_jsonl_fpath"],
        "output_jsonl_fpath": str(tmp_path / "p.jsonl"),
    }
    found = profile_rollouts(ProfileConfig.model_validate({**paths, **profile}))
    titles = [
        each.text for each in ElementTree.parse(tmp_path / "p_plots.svg").iter(f"{SVG}text") if each.get("class")
    ]
    assert titles == ["Rewards", "pass@k", "Reward against length", "Time by stage"]
    assert [row.row_index for row in found.hardest[:2]] == [1, 3]
    assert found.most_uncertain == []


def test_two_runs_are_drawn_side_by_side(tmp_path: Path) -> None:
    usage = {"output": [], "usage": {"output_tokens": 7}}
    for name, reward in (("before", 0.0), ("after", 1.0)):
        rows = [{**example_row("a"), "reward": reward, "_task_index": 0, "response": usage}] * 2
        write_lines(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "after_metrics.json").write_text('{"stages": {"model": {"seconds": 2, "requests": 2}}}')
    (tmp_path / "before_metrics.json").write_text('{"stages": "broken"}')
    config = CompareConfig(before=str(tmp_path / "before.jsonl"), after=str(tmp_path / "after.jsonl"))
    draw_comparison(config, tmp_path / "plots.svg")
    titles = [each.text for each in ElementTree.parse(tmp_path / "plots.svg").iter(f"{SVG}text") if each.get("class")]
    names = ("Rewards", "pass@k", "Reward against length")
    assert titles == [
        *(f"{name} {side}" for name in names for side in ("before", "after")),
        None,
        "Time by stage after",
    ]
