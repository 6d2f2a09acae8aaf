"""The searched plan against all plans that there are, and where it differs from the rules."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.graph.inference import infer
from bricolage.native.fuse import fusion
from bricolage.native.fuse.fusion import Blocks, Strategy, plan
from bricolage.native.fuse.kernel_plan import FusionPlan, kernel_nodes
from bricolage.native.fuse.memory_cost import KernelCosts
from bricolage.native.fuse.recomputation import SearchSpace, plan_cost, search_plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.lowerings import NoLowering
from bricolage.native.ir.tensors import Input, Node, Pointwise
from bricolage.testing import grow
from tests.backends import regions
from tests.native.targets import FUSION

Ends = tuple[Sequence[Node], Sequence[Node]]
COST = KernelCosts(FUSION.l2_bytes)
_CLOSE = 1.0102
"""What the search takes for equal."""


def lowered(seed: int) -> Ends | None:
    """A random region; None for those that the engine does not claim."""
    model = ir.from_proto(grow(seed).proto())
    infer(model)
    try:
        return lower_region(model)
    except NoLowering:
        return None


def parsed(folder: Path, body: str, inputs: str, outputs: str, **constants: np.ndarray) -> Ends:
    model = regions.region(folder, body, inputs, outputs, **constants).model
    infer(model)
    return lower_region(model)


def kinds(found: FusionPlan) -> list[str]:
    return [kernel.kind for kernel in found.kernels]


def nanoseconds(ends: Ends, strategy: Strategy = "searched") -> float:
    return COST.plan(plan(*ends, FUSION, strategy=strategy)).nanoseconds


class Given(fusion._Planner):
    """Any legal plan: epilogues end before `stops`, and `chosen` is stored of what may be stored or not."""

    def __init__(self, ends: Ends, stops: Collection[Node], chosen: Collection[Node]) -> None:
        super().__init__(*ends, FUSION, "nothing", "rules")
        self.stops, self.chosen = set(stops), set(chosen)
        self.free: Sequence[Node] = ()

    def _grow(self, root: Node, taken: Set[Node]) -> Any:
        return super()._grow(root, taken | self.stops)

    def _choose(self, *asked: Any) -> set[Node]:
        _, _, self.free, *_ = asked
        return self.chosen


def subsets(nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    return [chosen for size in range(len(nodes) + 1) for chosen in itertools.combinations(nodes, size)]


def least(ends: Ends, most: int) -> float | None:
    """Nanoseconds of the best of all legal plans; None where there are more than `most`."""
    absorbed, reached = Given(ends, (), ())._epilogues()
    inside = [node for node in {*absorbed, *reached} if isinstance(node, Pointwise)]
    if 2 ** len(inside) > most:
        return None
    found = []
    for stops in subsets(inside):
        planner = Given(ends, stops, ())
        planner.plan()
        if len(found) + 2 ** len(planner.free) > most:
            return None
        found += [COST.plan(Given(ends, stops, chosen).plan()).nanoseconds for chosen in subsets(planner.free)]
    return min(found)


def test_no_plan_of_a_small_region_is_cheaper() -> None:
    """All places where an epilogue may end, and all that may be stored, tried out."""
    tried = changed = 0
    for seed in range(60):
        ends = lowered(seed)
        best = None if ends is None else least(ends, 128)
        if ends is None or best is None:
            continue
        tried += 1
        changed += nanoseconds(ends) < nanoseconds(ends, "rules")
        assert nanoseconds(ends) <= best * _CLOSE, f"seed {seed}"
    assert tried > 20 and changed > 3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_every_choice_tried_out(seed: int) -> None:
    """The search itself, on what the planner asks it: as good as the best of all subsets, and no dearer than the rules."""
    ends = lowered(seed)
    if ends is None:
        return
    asked: list[tuple[SearchSpace, Set[Node], Mapping[Node, Sequence[Node]]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "search_plan", lambda *given: asked.append(given) or search_plan(*given))
        plan(*ends, FUSION)
    ((space, first, users),) = asked
    found = search_plan(space, first, users)
    assert found.stored <= space.optional
    assert plan_cost(space, found.stored) <= plan_cost(space, first) + 1e-6
    free = [node for node in space.number if node in space.optional]
    if found.exact and len(free) <= 7:
        best = min(plan_cost(space, chosen) for chosen in subsets(free))
        assert plan_cost(space, found.stored) <= best * _CLOSE
    assert nanoseconds(ends) <= nanoseconds(ends, "rules") + 1e-6


def test_what_is_cheap_is_computed_again_rather_than_stored(tmp_path: Path) -> None:
    """As in a normalisation that an exporter has written out: the rules store what both the squares and the result read."""
    ends = parsed(
        tmp_path,
        "m = ReduceMean (x, a) \n c = Sub (x, m) \n s = Mul (c, c) \n v = ReduceMean (s, a) \n d = Sqrt (v) \n y = Div (c, d)",
        "float[64, 256] x",
        "float[64, 256] y",
        a=np.int64([1]),
    )
    assert kinds(plan(*ends, FUSION, strategy="rules")) == ["reduce", "elementwise", "reduce", "elementwise"]
    assert kinds(plan(*ends, FUSION)) == ["reduce", "reduce", "elementwise"]


def test_what_is_dear_is_not_computed_for_every_row(tmp_path: Path) -> None:
    """One reader, but it asks for each element 1,024 times."""
    ends = parsed(
        tmp_path, "g = Softplus (v) \n y = Mul (x, g)", "float[1024, 256] x, float[256] v", "float[1024, 256] y"
    )
    assert kinds(plan(*ends, FUSION, strategy="rules")) == ["elementwise"]
    assert kinds(plan(*ends, FUSION)) == ["elementwise", "elementwise"]


@pytest.mark.parametrize(
    ("product", "expected"),
    [("MatMul (b, w)", ["matmul"]), ("MatMul (w, b)", ["elementwise", "matmul"])],
    ids=["rows", "columns"],
)
def test_in_front_of_a_product_it_depends(product: str, expected: list[str], tmp_path: Path) -> None:
    """Each row is packed by one thread, which can compute it there; columns are packed by every thread."""
    ends = parsed(
        tmp_path,
        f"a = Tanh (x) \n b = Mul (a, z) \n y = {product}",
        "float[256, 256] x, float[256, 256] z",
        "float[256, 256] y",
        w=regions.noise(256, 256),
    )
    assert kinds(plan(*ends, FUSION)) == expected


def test_equal_steps_are_decided_alike(tmp_path: Path) -> None:
    """So that they share their functions."""
    steps = [
        f"h{i + 1} = MatMul (g{i}, w) \n a{i} = Exp (h{i + 1}) \n g{i + 1} = Sub (a{i}, h{i + 1})" for i in range(6)
    ]
    ends = parsed(
        tmp_path,
        " \n ".join(["h0 = Abs (x)", "g0 = Neg (h0)", *steps]),
        "float[8, 8] x",
        "float[8, 8] g6",
        w=regions.noise(8, 8),
    )
    found = plan(*ends, FUSION)
    assert kinds(found) == ["matmul"] * 6


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_long_recurrences_keep_two_or_three_kernels_a_step(kind: str, tmp_path: Path) -> None:
    gates = {"GRU": 3, "LSTM": 4}[kind]
    ends = parsed(
        tmp_path,
        f"y = {kind} <hidden_size = 8> (x, w, r)",
        "float[40, 1, 8] x",
        "float[40, 1, 1, 8] y",
        w=regions.noise(1, gates * 8, 8),
        r=regions.noise(1, gates * 8, 8, seed=1),
    )
    assert len(plan(*ends, FUSION).kernels) <= len(plan(*ends, FUSION, strategy="rules").kernels)


def test_kernels_stay_inside_blocks(tmp_path: Path) -> None:
    """A partition from outside: nothing of one block is computed in a kernel of another, and views at borders are stored."""
    model = regions.region(
        tmp_path,
        """
        a = MatMul (x, w)
        b = Relu (a)
        c = Transpose <perm = [1, 0]> (b)
        d = Exp (c)
        e = Sub (d, c)
        y = ReduceSum <keepdims = 0> (e, n)
        """,
        "float[16, 24] x",
        "float[32] y",
        w=regions.noise(24, 32),
        n=np.int64([1]),
    )
    infer(model.model)
    origins: dict[Node, str] = {}
    ends = lower_region(model.model, origins)
    border = ["MatMul", "Relu"]
    of = {node: int(not any(name.startswith(word) for word in border)) for node, name in origins.items()}
    names = set(origins.values())
    found = plan(*ends, FUSION, strategy=Blocks(of))
    assert len(names) == 6 and kinds(found) == ["matmul", "reduce"]
    alone = {node: i for i, name in enumerate(sorted(names)) for node in origins if origins[node] == name}
    apart = plan(*ends, FUSION, strategy=Blocks(alone))
    for kernel in apart.kernels:
        inside, _ = kernel_nodes(kernel, apart)
        assert len({alone[node] for node in inside if node in alone and not isinstance(node, Input)}) == 1
    assert len(apart.kernels) == 6
    x = regions.noise(16, 24, seed=2)
    assert (
        regions.error(regions.answer(Native(), model, x, resources=Resources(threads=2)), regions.reference(model, x))
        < 2e-6
    )
