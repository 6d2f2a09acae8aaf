"""The search at the size of NASNet-A, on the benchmark's graphs."""

from __future__ import annotations

import json
import math
import time

import pytest

search_scaling = pytest.importorskip("benchmarks.placement.search_scaling", reason="run from the repository's root")

from bricolage.search.placement.exact import solve  # noqa: E402
from bricolage.work.transfer import NoTransferCosts  # noqa: E402


def test_nasnet_size_within_five_seconds() -> None:
    problem = search_scaling.nasnet_like(900)
    assert len(problem.graph) >= 900
    assert len(problem.candidates) / len(problem.graph) > 14
    started = time.process_time()
    found = solve(problem.graph, problem.candidates, search_scaling.transfer_costs())
    assert time.process_time() - started < 5.0
    assert found.proven_optimal
    assert len({choice.implementation.backend for choice in found.choices}) > 2


def test_growth_is_close_to_linear() -> None:
    small, large = search_scaling.nasnet_like(250), search_scaling.nasnet_like(1000)
    entries = [
        solve(p.graph, p.candidates, search_scaling.transfer_costs()).statistics.transitions for p in (small, large)
    ]
    states = [solve(p.graph, p.candidates, NoTransferCosts()).statistics.transitions for p in (small, large)]
    growth = math.log(len(large.graph) / len(small.graph))
    for low, high in (entries, states):
        assert math.log(high / low) / growth < 1.2


def test_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert search_scaling.main(["--sizes", "50", "100", "--repeats", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["timings"]) == 4
    assert set(printed["exponents"]) == {"without transfers", "with transfers"}
    assert all(timing["proven_optimal"] for timing in printed["timings"])
