"""Kernels at the same time: measured where a look says that they pay, left out with the reason elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import RegionModel, Resources
from bricolage.base.options import Options
from bricolage.costs.decision_log import Attempt
from bricolage.costs.models.track_record import TrackRecord
from bricolage.driver.state import DecisionState
from bricolage.graph.graph import Graph
from bricolage.plan.agenda_record import AgendaItem
from bricolage.work.implementation import KernelConfig
from bricolage.work.kernel_orders import OverlapEstimate
from tests.driver.made_up import Answers, First
from tests.driver.test_items import decided
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

W = np.ones((64, 64), np.float32)
AT_ONCE = KernelConfig("f32", (("at_once", True),))


class Overlapping(First):
    """Looks at a region as it is told to, and counts how often it does."""

    overlaps = True

    def __init__(self, overlapped: float | None, lower: float = 0.0) -> None:
        """Shares of the usual time; None: all kernels depend on each other."""
        self.shares, self.looks = (overlapped, lower), 0

    def estimate_overlap(
        self, region: RegionModel, config: KernelConfig, resources: Resources, measured_ms: float
    ) -> OverlapEstimate | None:
        assert region.path.exists() and resources.threads == 2 and config == KernelConfig("f32")
        self.looks += 1
        overlapped, lower = self.shares
        if overlapped is None:
            return None
        return OverlapEstimate(AT_ONCE, measured_ms, measured_ms * overlapped, measured_ms * lower, 6)


@pytest.fixture
def branches() -> Graph:
    return graph("a=MatMul(x,w) b=MatMul(x,w) y=Add(a,b)", "float[64,64] x", "float[64,64] y", w=W)


def entry(folder: Path, model: Graph, backend: Overlapping, *gains: float) -> tuple[AgendaItem | None, DecisionState]:
    """What an agenda at `quick` says of kernels at the same time, which gained so much on other networks."""
    attempts = tuple(Attempt("overlapped kernels", str(n), "matrix", "first", gain) for n, gain in enumerate(gains))
    options = Options(threads=2, effort="quick")
    state = decided(folder, model, [backend], TrackRecord(attempts=attempts), Answers(), options=options)
    return next((item for item in state.agenda if item.name == "kernels at the same time"), None), state


def test_it_is_measured_where_the_look_says_that_it_pays(tmp_path: Path, branches: Graph) -> None:
    backend = Overlapping(0.7, 0.5)
    item, state = entry(tmp_path, branches, backend)
    assert item is not None and item.outcome == "measured" and backend.looks == 1
    assert AT_ONCE in {implementation.config for implementation in state.original.whole}
    assert "6 kernels could run with others, which by arithmetic saves 30.0%, and 50.0%" in item.because
    assert item.bound == pytest.approx(0.5) and item.way == "overlapped kernels"


@pytest.mark.parametrize(("overlapped", "lower", "outcome"), [(0.99, 0.985, "bounded"), (0.99, 0.5, "unlikely")])
def test_it_is_left_out_with_the_reason(
    tmp_path: Path, branches: Graph, overlapped: float, lower: float, outcome: str
) -> None:
    item, state = entry(tmp_path, branches, Overlapping(overlapped, lower))
    assert item is not None and item.outcome == outcome and "by arithmetic saves 1.0%" in item.because
    assert AT_ONCE not in {implementation.config for implementation in state.original.whole}


def test_nothing_is_looked_at_where_it_never_gained(tmp_path: Path, branches: Graph) -> None:
    backend = Overlapping(0.7)
    item, _ = entry(tmp_path, branches, backend, *[0.0] * 50)
    assert item is not None and item.outcome == "unlikely" and not backend.looks


def test_nothing_is_said_of_chains(tmp_path: Path, branches: Graph) -> None:
    backend = Overlapping(None)
    item, _ = entry(tmp_path, branches, backend)
    assert item is None and backend.looks == 1
