"""Models of some dozens of operators are reduced to the ones that matter, in the least shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bricolage.backends.reference import REFERENCE
from bricolage.base.deadline import Deadline
from bricolage.base.progress import Silent
from bricolage.device.host import host
from bricolage.graph.graph import Graph
from bricolage.graph.store import Store
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Limits
from bricolage.plan.program_step import Step
from bricolage.trust.case import (
    FaultCase,
    constants,
    fewer_outputs,
    simpler_attributes,
    simpler_values,
    smaller_shapes,
    survives,
)
from bricolage.trust.model_reduction import Reduced, Reducer, Suspect
from bricolage.trust.probe import Prober, Verdict
from bricolage.trust.repro import write_repro
from bricolage.work.implementation import Implementation
from tests.graph.models import graph
from tests.trust.conftest import oracle_of
from tests.trust.test_bisect import WrongSquare

Shrink = Callable[..., "Reduced | None"]


@pytest.fixture
def shrink(tmp_path: Path) -> Iterator[Shrink]:
    """Reduces a graph for a suspect."""
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store")
    with Pool(memory_limit=2 << 30) as pool:
        prober = Prober(pool, tmp_path, 1, host(), Limits())

        def run(made: Graph, suspect: Suspect, seconds: float = 600.0) -> Reduced | None:
            store.share([made.model])
            reducer = Reducer(suspect, prober, store, 1e-5, Deadline(seconds), Silent())
            return reducer.run(oracle_of(made, store), range(len(made)))

        yield run


def deep(blocks: int = 10) -> Graph:
    """42 operators in ten blocks, one Tanh and one Abs among them."""
    rng = np.random.default_rng(0)
    lines, last = [], "x"
    for i in range(blocks):
        middle = {3: "Abs", blocks - 4: "Tanh"}.get(i, "Sigmoid")
        lines += [
            f"m{i} = MatMul({last}, w)",
            f"a{i} = Add(m{i}, u)",
            f"s{i} = {middle}(a{i})",
            f"r{i} = Add(s{i}, {last})",
        ]
        last = f"r{i}"
    lines += [f"z = Neg({last})", "y = Relu(z)"]
    weights = {"w": rng.normal(0, 0.2, (8, 8)).astype(np.float32), "u": np.ones(8, np.float32)}
    made = graph(" ".join(lines), "float[4, 8] x", "float[4, 8] y", **weights)
    assert len(made) == 4 * blocks + 2
    return made


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        *((name, 4) for name in ("crooked", "crashing")),
        *(pytest.param(name, 10, marks=pytest.mark.slow) for name in ("crooked", "crashing")),
    ],
)
def test_a_backend_that_is_wrong_about_one_operator(shrink: Shrink, name: str, blocks: int, tmp_path: Path) -> None:
    found = shrink(deep(blocks), Suspect(Implementation(name)))
    assert found is not None and found.finished and found.before == 4 * blocks + 2
    assert [node.op_type for node in found.case.model.graph] == ["Tanh"]
    (array,) = found.case.inputs.values()
    assert array.size == 1
    paths = write_repro(found, tmp_path, 1)
    assert all(path.stat().st_size for path in paths)
    onnx.checker.check_model(str(paths[0]), full_check=True)
    assert "Tanh" in paths[-1].read_text(encoding="utf-8") and "numpy" in paths[-1].read_text(encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # the planted backend is in the tests
    ran = subprocess.run(
        [sys.executable, str(paths[3])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
        encoding="utf-8",
    )
    if name == "crooked":
        assert ran.returncode == 1 and ran.stdout.rstrip().endswith("wrong"), ran.stderr
    else:
        assert ran.returncode < 0


def test_the_same_fault_gives_the_same_model(shrink: Shrink) -> None:
    first, second = (shrink(deep(4), Suspect(Implementation("crooked"))) for _ in range(2))
    assert first is not None and second is not None
    names = [[node.name for node in one.case.model.graph] for one in (first, second)]
    assert names[0] == names[1]
    for one, other in zip(first.case.inputs.values(), second.case.inputs.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_wrong_rule(shrink: Shrink) -> None:
    found = shrink(deep(4), Suspect(REFERENCE, WrongSquare()))
    assert found is not None and [node.op_type for node in found.case.model.graph] == ["Abs"]


def test_without_time_the_best_so_far_is_kept(shrink: Shrink) -> None:
    found = shrink(deep(), Suspect(Implementation("crooked")), 0.0)
    assert found is not None and not found.finished and found.case.operators == 42


class Impatient(Prober):
    """Somebody presses Ctrl-C at the eighth trial."""

    def run(
        self, steps: Sequence[Step], outputs: Sequence[str], files: tuple[Path, Path, float], *, fresh: bool = False
    ) -> Verdict:
        if self.count == 7:
            raise KeyboardInterrupt
        return super().run(steps, outputs, files, fresh=fresh)


def test_after_an_interruption_the_best_so_far_is_kept(tmp_path: Path) -> None:
    made, store = deep(), Store(tmp_path)
    store.share([made.model])
    with Pool(memory_limit=2 << 30) as pool:
        prober = Impatient(pool, tmp_path, 1, host(), Limits())
        reducer = Reducer(Suspect(Implementation("crooked")), prober, store, 1e-5, Deadline(600.0), Silent())
        found = reducer.run(oracle_of(made, store), range(len(made)))
    assert found is not None and not found.finished and 1 <= found.case.operators < 42


def test_what_is_right_is_not_reduced(shrink: Shrink) -> None:
    assert shrink(deep(), Suspect(Implementation("sound"))) is None


def test_a_check_that_ends_its_process_is_survived() -> None:
    assert survives(lambda: None)
    assert not survives(os.abort) and not survives(lambda: 1 // 0)


CONV = """c = Conv<pads=[1,1,1,1]>(x, w) s = Reshape(c, n) a, b = Split<axis=1, num_outputs=2>(s) y = Tanh(a) z = Relu(b)"""


def conv() -> FaultCase:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(6, 4, 3, 3)).astype(np.float32), "n": np.array([2, 6, 64])}
    made = graph(CONV, "float[2,4,8,8] x", "float[2,3,64] y, float[2,3,64] z", **weights)
    return FaultCase(made.model, {"x": rng.normal(size=(2, 4, 8, 8)).astype(np.float32)})


def test_smaller_cases_are_valid_models() -> None:
    start = conv()
    before = {"x": start.inputs["x"], **constants(start.model)}
    counts = []
    for maker in (fewer_outputs, smaller_shapes, simpler_values, simpler_attributes):
        cases = [case for case in maker(start) if case is not None]
        counts.append(len(cases))
        for case in cases:
            onnx.checker.check_model(ir.to_proto(case.model), full_check=True)
            for value in case.model.graph.inputs:
                assert value.shape == case.inputs[value.name or ""].shape
    assert all(counts)
    np.testing.assert_array_equal(start.inputs["x"], before["x"])  # the start is as it was
    np.testing.assert_array_equal(constants(start.model)["w"], before["w"])
    sizes = {case.inputs["x"].shape for case in smaller_shapes(start) if case is not None}
    assert (1, 4, 8, 8) in sizes and (2, 1, 8, 8) in sizes
