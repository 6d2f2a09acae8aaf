"""The search for TVM's schedules: what it chooses computes the same, and is data."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("tvm") is None:  # to import it is for the process that these tests run in
    pytest.skip("tvm is not installed", allow_module_level=True)

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import KernelTiming
from bricolage.backends.tvm import Tvm
from bricolage.backends.tvm_schedule import TILINGS, block_size
from bricolage.backends.tvm_tuning import SCHEDULE, SEEDS, parse_choice
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

TWO = Resources(threads=2)
pytestmark = pytest.mark.apart


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> RegionModel:
    return regions.conv_net(tmp_path_factory.mktemp("tvm"))


def difference(region: RegionModel, config: KernelConfig) -> float:
    """Of an answer from the float64 reference."""
    x = regions.noise(1, 8, 32, 32)
    found = regions.answer(Tvm(), region, x, config=config, resources=TWO)
    return regions.error(found, regions.reference(region, x))


def names(region: RegionModel) -> list[str]:
    return list(Tvm().space(region, regions.F32, TWO).parameters)


def test_trials_time_what_is_in_the_space(region: RegionModel) -> None:
    tasks, trials = Tvm().space(region, regions.F32, TWO).tasks, Tvm().trials(region, regions.F32, TWO)
    usual = trials.usual(2)
    timed = [task for task in tasks if task.name in usual]
    assert timed and all(usual[task.name] > 0 for task in timed)
    builds = [{task.name: ((SCHEDULE, choice),)} for task in timed[:3] for choice in (str(TILINGS[0]), "sample 3")]
    told = trials.run(builds, 2)
    assert [set(one) for one in told] == [set(build) for build in builds]
    assert any(isinstance(trial, KernelTiming) for one in told for trial in one.values())


@pytest.mark.parametrize(
    "choice",
    [
        *map(str, TILINGS[::142]),
        "sample 1",
        *(pytest.param(choice, marks=pytest.mark.slow) for choice in (*map(str, TILINGS[71::142]), f"sample {SEEDS}")),
    ],
)
def test_every_choice_computes_the_same(region: RegionModel, choice: str) -> None:
    assert difference(region, regions.F32.tuned(dict.fromkeys(names(region), choice))) < 1e-5


@pytest.mark.parametrize("text", ["", "tile", "tile 5 5 5 5", "tile 0 0 1 0", "sample 0", "sample x", "exec 1", 7])
def test_what_is_no_choice_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError):
        parse_choice(text)


def test_blocks_keep_to_what_is_asked() -> None:
    assert block_size(56, 64, 16, height=6, vectors=2) == (4, 32)
    assert block_size(56, 64, 16) == block_size(56, 64, 16, height=0, vectors=0)
