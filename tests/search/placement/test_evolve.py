from __future__ import annotations

import itertools

import pytest

from bricolage.errors import BadOption
from bricolage.search.placement.evolve import EvolutionOptions, EvolutionResult, evolve
from bricolage.search.placement.merge import merge_regions
from bricolage.work.implementation import Implementation, Placement
from tests.search.problems import graph_of, offer

SIZE = 7
GRAPH = graph_of([[1, 2], [3], [4], [5], [5], [6], []])
ENGINES = (Implementation("x"), Implementation("y"))
MARGINAL = {"k": [1.0, 1.2, 2.0, 1.1, 1.3, 1.0, 1.2], "x": [0.6, 2.0, 1.0, 0.9, 1.0, 0.8, 0.9]}
MARGINAL["y"] = [2.0, 0.4, 1.0, 0.5, 1.5, 0.7, 2.5]
FIXED = {"k": 0.0, "x": 0.9, "y": 0.7}
OPTIMUM = [offer(1 << i, "k", MARGINAL["k"][i], merges=False) for i in range(SIZE)]


def allowed(region: int) -> tuple[Implementation, ...]:
    """Engine y cannot run operator 4."""
    return ENGINES[:1] if region >> 4 & 1 else ENGINES


def pairs(placement: Placement) -> list[tuple[str, int]]:
    """Backends and regions."""
    return [(one.implementation.backend, one.region) for one in placement]


def marginal_cost(placement: Placement) -> float:
    """What the additive model sees."""
    return sum(MARGINAL[backend][i] for backend, region in pairs(placement) for i in range(SIZE) if region >> i & 1)


def true_cost(placement: Placement) -> float:
    """Engines pay once for each merged region: what the additive model cannot see."""
    return marginal_cost(placement) + sum(FIXED[backend] for backend, _ in pairs(placement))


def best_of_all() -> float:
    costs = []
    for backends in itertools.product("kxy", repeat=SIZE):
        if backends[4] == "y":
            continue
        choices = [offer(1 << i, b, 0.0, merges=b != "k") for i, b in enumerate(backends)]
        costs.append(true_cost(merge_regions(GRAPH, choices)))
    return min(costs)


def run(options: EvolutionOptions, **changes) -> EvolutionResult:
    arguments = {
        "allowed": allowed,
        "measure": lambda placements: [true_cost(p) for p in placements],
        "predict": marginal_cost,
        "options": options,
        **changes,
    }
    return evolve(GRAPH, OPTIMUM, **arguments)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_finds_the_optimum_of_fixed_and_marginal_costs(seed: int) -> None:
    result = run(EvolutionOptions(generations=30, patience=30, seed=seed))
    assert result.best.measured_ms == pytest.approx(best_of_all())
    assert result.best.measured_ms == pytest.approx(true_cost(result.best.placement))


def test_seeds_are_the_optimum_and_each_engine_where_it_is_allowed() -> None:
    result = run(EvolutionOptions(generations=0))
    assert result.stopped == "generations"
    backends = [set(pairs(one.placement)) for one in result.measured]
    assert {("k", 1 << i) for i in range(SIZE)} in backends
    assert {("x", GRAPH.everything)} in backends
    assert any({b for b, _ in one} == {"k", "y"} and ("k", 1 << 4) in one for one in backends)
    assert len(result.measured) == 3


def test_best_never_gets_worse_and_nothing_is_measured_twice() -> None:
    result = run(EvolutionOptions(generations=12))
    bests = [generation.best_ms for generation in result.history]
    assert bests == sorted(bests, reverse=True)
    assert result.best.measured_ms == min(one.measured_ms for one in result.measured)
    placements = [one.placement for one in result.measured]
    assert len(set(placements)) == len(placements)


def test_same_seed_same_history_and_another_seed_another() -> None:
    options = EvolutionOptions(generations=4, offspring=4)
    assert run(options) == run(options)
    other = EvolutionOptions(generations=4, offspring=4, seed=1)
    assert run(options).measured != run(other).measured


def test_may_be_stopped_between_generations() -> None:
    seen: list[int] = []
    result = run(
        EvolutionOptions(generations=50),
        on_generation=lambda generation: seen.append(generation.number),
        should_stop=lambda: len(seen) == 2,
    )
    assert result.stopped == "asked"
    assert seen == [0, 1]
    assert result.best.measured_ms == min(one.measured_ms for one in result.measured)


def test_no_time_at_all_gives_the_unmeasured_optimum() -> None:
    result = run(EvolutionOptions(), should_stop=lambda: True)
    assert result.stopped == "asked"
    assert result.best.measured_ms is None
    assert result.best.placement == tuple(choice.assignment for choice in OPTIMUM)


def test_failures_never_win() -> None:
    def measure(placements):
        return [None if any(b == "x" for b, _ in pairs(p)) else true_cost(p) for p in placements]

    result = run(EvolutionOptions(generations=8), measure=measure)
    assert all(b != "x" for b, _ in pairs(result.best.placement))
    nothing = run(EvolutionOptions(generations=2), measure=lambda placements: [None] * len(placements))
    assert nothing.best.measured_ms is None
    assert nothing.best.genome == (0,) * SIZE


def test_only_the_most_promising_offspring_are_measured() -> None:
    options = EvolutionOptions(generations=1, offspring=2, oversampling=20)
    predicted: list[float] = []

    def predict(placement: Placement) -> float:
        predicted.append(true_cost(placement))
        return predicted[-1]

    result = run(options, predict=predict)
    assert sorted(one.measured_ms for one in result.history[1].measured) == pytest.approx(sorted(predicted)[:2])
    assert len(predicted) > 10


def test_stops_when_nothing_new_is_left() -> None:
    result = run(EvolutionOptions(generations=50), allowed=lambda _: ())
    assert result.stopped == "exhausted"
    assert len(result.measured) == 1


def test_stops_without_gain() -> None:
    result = run(EvolutionOptions(generations=50, patience=2, offspring=2), measure=lambda p: [1.0] * len(p))
    assert result.stopped == "patience"
    assert len(result.history) == 3


def test_bad_options_are_refused() -> None:
    with pytest.raises(BadOption):
        EvolutionOptions(population=0)
    with pytest.raises(BadOption):
        EvolutionOptions(generations=-1)
