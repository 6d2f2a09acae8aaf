"""How the time of rewriting grows with the model and with the number of rules: `python -m benchmarks.rewrites.rewrite_scaling`.

Models are blocks of what exporters write out, one after the other: convolution with batch normalisation, layer normalisation,
GELU, a projection with its bias, scaled products around a softmax, transposes and reshapes that cancel, operators that change
nothing. Sizes are small, so that finding and applying rules is what is timed, on one core (median of some repeats). More
rules are made from the catalogue's: each copy has every pattern with one operator more that no model has, at the deepest place,
so that a copy never applies, and is left as late as its pattern can be. The exponent is the slope of log(time) over
log(operators), or over log(rules): 1 is linear, 0 independent.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from bricolage.frontends import to_model
from bricolage.graph.prepare import simplify
from bricolage.rewrite.catalogue import written_rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import Either, Op, Roots, ValuePattern, op
from bricolage.rewrite.rule import GraphRule, MatchFailure, Operators, Result, Rule

SIZES = (100, 300, 1_000, 3_000, 10_000)
COPIES = (0, 1, 3, 9)
_MIDDLE = 1_000
"""Operators of the model on which rules are added."""
_NEVER = "NeverThere"

_BLOCK = """
c{i} = Conv<pads=[1,1,1,1]>(x{i}, kernel) n{i} = BatchNormalization(c{i}, eight, eight, eight, eight)
r{i} = Relu(n{i}) d{i} = Identity(r{i}) t{i} = Transpose<perm=[0,2,3,1]>(d{i}) u{i} = Relu(t{i})
v{i} = Transpose<perm=[0,3,1,2]>(u{i}) w{i} = Reshape(v{i}, flat)
m{i} = ReduceMean(w{i}, last) e{i} = Sub(w{i}, m{i}) f{i} = Mul(e{i}, e{i}) g{i} = ReduceMean(f{i}, last)
h{i} = Add(g{i}, epsilon) j{i} = Sqrt(h{i}) k{i} = Div(e{i}, j{i}) l{i} = Mul(k{i}, sixteen) o{i} = Add(l{i}, sixteen)
p{i} = MatMul(o{i}, matrix) q{i} = Add(p{i}, sixteen)
ga{i} = Div(q{i}, root) gb{i} = Erf(ga{i}) gc{i} = Add(gb{i}, one) gd{i} = Mul(q{i}, gc{i}) ge{i} = Mul(gd{i}, half)
ka{i} = MatMul(ge{i}, matrix) kb{i} = Transpose<perm=[0,2,1]>(ka{i}) kc{i} = MatMul(ge{i}, kb{i}) kd{i} = Div(kc{i}, two)
ke{i} = Softmax<axis=-1>(kd{i}) kf{i} = MatMul(ke{i}, ge{i}) kg{i} = Add(kf{i}, w{i}) kh{i} = Dropout(kg{i})
x{j} = Reshape(kh{i}, image)
"""
_PER_BLOCK = _BLOCK.count("=") - _BLOCK.count("<")


@dataclass(frozen=True)
class Timing:
    """Median seconds of finding and applying rules on one model."""

    operators: int
    rules: int
    seconds: float
    applications: int


def network(operators: int) -> ir.Model:
    """A model of at least that many operators, simplified as `bricolage rewrite` does before any rule."""
    count = math.ceil(operators / _PER_BLOCK)
    body = "".join(_BLOCK.format(i=i, j=i + 1) for i in range(count))
    graph = onnx.parser.parse_graph(
        f"g (float[1,8,4,4] x0) => (float[1,8,4,4] x{count}) {{ {body.replace(chr(10), ' ')} }}"
    )
    sizes: dict[str, Sequence[int]] = {"kernel": (8, 8, 3, 3), "eight": (8,), "sixteen": (16,), "matrix": (16, 16)}
    for name, shape in sizes.items():
        numbers = [0.5 + (k % 7) / 16 for k in range(math.prod(shape))]
        graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, numbers))
    scalars = {"epsilon": 1e-5, "root": math.sqrt(2), "one": 1.0, "half": 0.5, "two": 2.0}
    for name, number in scalars.items():
        graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, (), [number]))
    lists = {"flat": [1, 8, 16], "image": [1, 8, 4, 4], "last": [-1]}
    for name, integers in lists.items():
        graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, (len(integers),), integers))
    opsets = [onnx.helper.make_opsetid("", 20)]
    model = to_model(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    simplify(model)
    return model


class _Copy(Rule):
    """A rule whose patterns ask for one operator more than there is."""

    family = "copy"

    def __init__(self, rule: Rule, number: int) -> None:
        self._rule, self._name = rule, f"{rule.name}-{number}"
        self._patterns = [_never(pattern) for pattern in rule.patterns()]

    @property
    def name(self) -> str:
        return self._name

    def patterns(self) -> Sequence[Roots]:
        return self._patterns

    def rewrite(self, op: Operators, match: Match) -> Result:  # noqa: ARG002 - it never comes to that
        raise MatchFailure("a copy never applies")


def _never(pattern: Roots) -> Roots:
    if isinstance(pattern, tuple):
        return (*pattern[:-1], _deepened(pattern[-1]))
    return _deepened(pattern)


def _deepened(pattern: Op) -> Op:
    """The pattern with its last deepest input computed by an operator that no model has."""
    if not pattern.inputs:
        return replace(pattern, inputs=(op.one_of(_NEVER)(),))
    at = max(range(len(pattern.inputs)), key=lambda i: (_depth(pattern.inputs[i]), i))  # type: ignore[index]
    inner = pattern.inputs[at]
    return replace(pattern, inputs=(*pattern.inputs[:at], _deeper(inner), *pattern.inputs[at + 1 :]))


def _deeper(pattern: ValuePattern) -> ValuePattern:
    if isinstance(pattern, Op):
        return _deepened(pattern)
    if isinstance(pattern, Either):
        return Either(*map(_deeper, pattern.choices))
    return op.one_of(_NEVER)()


def _depth(pattern: ValuePattern) -> int:
    if isinstance(pattern, Op):
        return 1 + max(map(_depth, pattern.inputs or ()), default=0)
    return max(map(_depth, pattern.choices)) if isinstance(pattern, Either) else 0


def timing(model: ir.Model, rules: Sequence[Rule], repeats: int) -> Timing:
    """Rewrites copies of a model."""
    seconds, applied = [], 0
    for _ in range(repeats):
        trial = model.clone()
        start = time.process_time()
        applied = len(rewrite(trial, rules))
        seconds.append(time.process_time() - start)
    return Timing(sum(1 for _ in model.graph), len(rules), statistics.median(seconds), applied)


def exponent(pairs: Iterable[tuple[float, float]]) -> float:
    """Slope of log(seconds) over log(size), by least squares."""
    points = [(math.log(size), math.log(seconds)) for size, seconds in pairs]
    x, y = (statistics.fmean(p[i] for p in points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def run(sizes: Sequence[int], copies: Sequence[int], repeats: int) -> tuple[list[Timing], list[Timing]]:
    """Timings by operators with the catalogue, and by rules on a model of 1,000 operators."""
    rules = written_rules()
    by_operators = [timing(network(size), rules, repeats) for size in sizes]
    middle = network(_MIDDLE)
    sources = [rule for rule in rules if not isinstance(rule, GraphRule) and not rule.cost_based]
    by_rules = []
    for count in copies:
        more = [_Copy(rule, number) for number in range(count) for rule in sources]
        by_rules.append(timing(middle, [*rules, *more], repeats))
    return by_operators, by_rules


def exponents(by_operators: Sequence[Timing], by_rules: Sequence[Timing]) -> tuple[float, float]:
    """Of operators, and of rules."""
    return (
        exponent((t.operators, t.seconds) for t in by_operators),
        exponent((t.rules, t.seconds) for t in by_rules),
    )


def plot(by_operators: Sequence[Timing], by_rules: Sequence[Timing], path: Path) -> None:
    """Two panels on logarithmic axes. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.2), constrained_layout=True)
    found = exponents(by_operators, by_rules)
    for axes, timings, name, power in zip(panels, (by_operators, by_rules), ("operators", "rules"), found, strict=True):
        sizes = [getattr(t, name) for t in timings]
        axes.loglog(sizes, [t.seconds for t in timings], marker="o", label=f"exponent {power:.2f}")
        first, last = timings[0], sizes[-1] / sizes[0]
        axes.loglog([sizes[0], sizes[-1]], [first.seconds, first.seconds * last], "--", color="grey", label="linear")
        axes.set_xlabel(name)
        axes.set_ylabel("seconds")
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
    panels[0].set_title(f"{by_operators[0].rules} rules, one core")
    panels[1].set_title(f"{by_rules[0].operators:,} operators, one core")
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.rewrites.rewrite_scaling", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="operators in each model")
    parser.add_argument("--copies", type=int, nargs="+", default=list(COPIES), help="copies of the rules to add")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG file (needs matplotlib)")
    options = parser.parse_args(arguments)
    by_operators, by_rules = run(options.sizes, options.copies, options.repeats)
    of_operators, of_rules = exponents(by_operators, by_rules)
    if options.json:
        timings = [asdict(t) for t in (*by_operators, *by_rules)]
        print(json.dumps({"timings": timings, "operators": of_operators, "rules": of_rules}, indent=2))
    else:
        print("operators  rules   seconds  applications")
        for t in (*by_operators, *by_rules):
            print(f"{t.operators:>9}  {t.rules:>5}  {t.seconds:>8.3f}  {t.applications:>12}")
        print(f"exponent of operators {of_operators:.2f}, of rules {of_rules:.2f}")
    if options.plot:
        plot(by_operators, by_rules, options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
