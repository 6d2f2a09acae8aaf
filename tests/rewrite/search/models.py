"""Models, costs and exhaustive enumeration for the tests of searches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bricolage.costs.models.roofline import NOMINAL
from bricolage.graph.inference import infer
from bricolage.rewrite.rule import Example, Rule
from bricolage.rewrite.search.fingerprint import Fingerprint
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.workspace import Workspace
from bricolage.work.cost import CostModel, Estimate, OneByOne, Work


def per_operator(ms: Callable[[Work], float]) -> OneByOne:
    """A model of costs from a function of one operator."""
    return OneByOne(lambda work: Estimate.of(ms(work), "described"))


def by_type(dear: Mapping[str, float], otherwise: float) -> OneByOne:
    """Every operator costs its start."""
    return per_operator(lambda work: dear.get(work.operators[0].kind, otherwise))


def odd(seed: int) -> OneByOne:
    """Arbitrary costs: any operator may be dear, so that a search goes everywhere."""
    return per_operator(lambda work: 1e-3 * (1 + zlib.crc32(f"{seed} {work.key}".encode()) % 1000))


STARTED = by_type({"MatMul": 1.0, "Conv": 1.0, "Gemm": 1.0, "Split": 0.3}, 0.1)
"""Every operator costs its start, contractions much."""


def pricing(costs: CostModel, model: ir.Model) -> Pricing:
    """Of a model's operators, on no machine in particular."""
    return Pricing(costs, NOMINAL, model.graph.opset_imports)


PRODUCTS = Example(
    "float[8,16] x",
    "a = MatMul(x, v) b = MatMul(x, w) c = Add(a, p) d = Add(b, q) y = Concat<axis=1>(c, d)",
    {"v": (16, 16), "w": (16, 16), "p": (16,), "q": (16,)},
)
"""Two products that are cheaper as one, where starting a product costs much."""
KERNELS = Example(
    "float[1,4,8,8] x",
    "a = Conv(x, v) b = Conv<pads=[1,1,1,1]>(x, w) y = Concat<axis=1>(a, b)",
    {"v": (4, 4, 1, 1), "w": (4, 4, 3, 3)},
)
"""A small kernel has to be enlarged, which costs, before the two can be merged and split and concatenation cancel."""
FIRE = Example(
    "float[1,32,9,9] x",
    "s = Conv(x, w) r = Relu(s) a = Conv(r, v, p) b = Conv<pads=[1,1,1,1]>(r, u, q) "
    "c = Relu(a) d = Relu(b) y = Concat<axis=1>(c, d)",
    {"w": (8, 32, 1, 1), "v": (32, 8, 1, 1), "u": (32, 8, 3, 3), "p": (32,), "q": (32,)},
)
"""A fire module (SqueezeNet). Its two expanding convolutions are one where starting a convolution costs more than the work
that the enlarged kernel adds: a merge stage of IOS."""
BRANCHES = Example(
    "float[1,2,6] x, float[1,2,6] z, float[1,2,6] u",
    "a = Conv(x, v) b = Conv(z, w) c = Conv(u, q) y = Concat<axis=1>(a, b, c)",
    {"v": (4, 2, 3), "w": (4, 2, 3), "q": (4, 2, 3)},
)
"""Convolutions on different inputs, which are cheaper as groups of one where starting one costs much."""
FANNED = Example(
    "float[2,3,4] x",
    "t = Transpose<perm=[0,2,1]>(x) a = Relu(t) b = Tanh(t) c = Transpose<perm=[0,2,1]>(a) "
    "d = Transpose<perm=[0,2,1]>(b) y = Add(c, d)",
)
"""A transpose has to be doubled, which costs, before each half cancels with another."""


@st.composite
def square_models(draw: st.DrawFn, *, most: int = 6) -> ir.Model:
    """Operators on 3×3 tensors, so that everything fits everywhere."""
    known, lines = ["x", "z"], []
    for number in range(draw(st.integers(2, most))):
        kind = draw(
            st.sampled_from(["Relu", "Neg", "Transpose", "Identity", "Add", "Mul", "Sub", "MatMul", "weighted"])
        )
        first, second = draw(st.sampled_from(known[-3:])), draw(st.sampled_from(known))
        if kind == "weighted":
            call = f"MatMul({first}, {draw(st.sampled_from(['v', 'w']))})"
        else:
            call = f"{kind}({first}, {second})" if kind in ("Add", "Mul", "Sub", "MatMul") else f"{kind}({first})"
        lines.append(f"t{number} = {call}")
        known.append(f"t{number}")
    outputs = draw(st.lists(st.sampled_from(known[2:]), min_size=1, max_size=2, unique=True))
    if known[-1] not in outputs:
        outputs.append(known[-1])
    example = Example(
        "float[3,3] x, float[3,3] z", " ".join(lines), {"v": (3, 3), "w": (3, 3)}, outputs=", ".join(outputs)
    )
    model = example.model()
    RemoveUnusedNodesPass()(model)
    return model


def reachable(
    model: ir.Model, rules: Sequence[Rule], costs: CostModel, *, most: int = 2_000
) -> tuple[float, int] | None:
    """The cost of the cheapest graph that any sequence of applications leads to, and how many distinct graphs there are; graphs of
    more than twice the operators aside. By enumeration, every graph made and counted in full. None where there are too many."""
    prices = pricing(costs, model)
    start = Workspace(model.clone(), rules, lazy=True)
    largest = 2 * len(model.graph)
    waiting, known, best = [start], {Fingerprint(model.graph).number}, float("inf")
    while waiting:
        home = waiting.pop()
        best = min(best, prices.total(home.model.graph))
        steps = []
        for proposal in home.proposals():
            steps.append(proposal.step)
            proposal.discard()
        for step in steps:
            after = home.copy()
            after.accept(after.find(step))
            number = Fingerprint(after.model.graph).number
            if number not in known and len(after.model.graph) <= largest:
                known.add(number)
                waiting.append(after)
        if len(known) > most:
            return None
    return best, len(known)


def layers(count: int, *, size: int = 8, plain: int | None = None) -> ir.Model:
    """Equal blocks in a row: two products of one input, added after a bias each. Block number `plain` has biases of zero."""
    rng = np.random.default_rng(0)
    lines, weights, last = [], {}, "x"
    for i in range(count):
        lines.append(
            f"a{i} = MatMul({last}, v{i}) b{i} = MatMul({last}, w{i}) c{i} = Add(a{i}, p{i}) d{i} = Relu(b{i}) "
            f"e{i} = Add(c{i}, d{i}) y{i} = Softmax(e{i})"
        )
        for name in "vw":
            weights[f"{name}{i}"] = rng.standard_normal((size, size)).astype(np.float32)
        weights[f"p{i}"] = np.zeros(size, np.float32) if i == plain else rng.standard_normal(size).astype(np.float32)
        last = f"y{i}"
    return Example(f"float[4,{size}] x", " ".join(lines), weights, outputs=last).model()


def parsed(text: str) -> ir.Model:
    """A model in ONNX's text syntax, with types and shapes."""
    model: ir.Model = ir.from_proto(onnx.parser.parse_model(text))
    infer(model)
    return model
