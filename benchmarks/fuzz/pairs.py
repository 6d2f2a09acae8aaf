"""Pairs of operators that runtimes merge, on inputs of every kind, with a backend's graph optimisations on: what is wrong with
both together and right with each alone is a fault of the merging.

A pair is judged by the float64 reference on the inputs that decisions use (`bricolage.verify.variations`). Where an answer is
wrong, the backend runs it without its optimisations, if it has that switch, and operator by operator: a single operator that is
wrong alone is a matter of its capability table, and is not told here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from benchmarks.fuzz import engines
from benchmarks.fuzz.findings import Finding, script, store
from benchmarks.fuzz.ledger import Block
from bricolage.backends import registry
from bricolage.backends.interface import Backend, Resources
from bricolage.base import scratch
from bricolage.conformance.regions import run_bound, write_region
from bricolage.device.host import host
from bricolage.errors import BricolageError, Refused, UnsupportedOperator
from bricolage.frontends import to_model
from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Operator, Region
from bricolage.graph.prepare import prepare
from bricolage.verify.inputs import draw_inputs
from bricolage.verify.reference import evaluate
from bricolage.verify.variations import beyond_rounding, kinds
from bricolage.work.implementation import KernelConfig

_FAR = 1e-3
"""Relative error beyond rounding from which an answer is a finding: merging faults are no matter of the last digits."""
_RESOURCES = Resources(threads=2)


Value = TypeVar("Value")


@dataclass
class _Pair:
    """A model in the making."""

    rng: np.random.Generator
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    input: str = "float[1,4,7,6] x"

    def any(self, *values: Value) -> Value:
        """One of these."""
        return values[int(self.rng.integers(len(values)))]

    def floats(self, *shape: int) -> str:
        """Name of a constant with values of both signs, some of them zero."""
        values = self.rng.standard_normal(shape) * self.rng.choice([0.0, 1.0, 1.0, 1.0], shape)
        return self.constant(values.astype(np.float32))

    def ints(self, *values: int) -> str:
        """Name of a constant."""
        return self.constant(np.array(values, np.int64))

    def constant(self, value: Any) -> str:
        """Its name."""
        name = f"k{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name


def _pad(p: _Pair) -> str:
    mode = p.any("constant", "constant", "constant", "reflect", "edge")
    least = p.any(0, 0, 0, -1) if mode == "constant" else 0
    sides = [0, 0, *(int(n) for n in p.rng.integers(least, 3, 2)), 0, 0, *(int(n) for n in p.rng.integers(least, 3, 2))]
    value = f", {p.constant(np.float32(p.any(0, 0, 0, 1, -2)))}" if mode == "constant" else ""
    return f'a = Pad <mode = "{mode}"> (x, {p.ints(*sides)}{value}) '


def _window(p: _Pair) -> str:
    sides = [int(n) for n in p.rng.integers(0, p.any(1, 1, 2), 4)]
    return f"kernel_shape = [3, {p.any(2, 3)}], pads = {sides}, strides = [{p.any(1, 2, 3)}, {p.any(1, 2)}]"


def _pool(p: _Pair, of: str = "a") -> str:
    ceil = f", ceil_mode = {p.any(0, 1)}"
    kind = p.any("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool")
    counted = f", count_include_pad = {p.any(0, 1)}" if kind == "AveragePool" else ""
    return f"{kind} <{_window(p)}{ceil}{counted}> ({of})"


def _conv(p: _Pair, of: str = "a") -> str:
    groups = p.any(1, 1, 4)
    kernel, bias = p.floats(4, 4 // groups, 3, 3), f", {p.floats(4)}" if p.any(0, 1) else ""
    sides = [int(n) for n in p.rng.integers(0, 2, 4)]
    return f"Conv <pads = {sides}, group = {groups}, strides = [{p.any(1, 2)}, 1]> ({of}, {kernel}{bias})"


def _normalised(p: _Pair, of: str) -> str:
    spread = p.constant(np.abs(p.rng.standard_normal(4)).astype(np.float32) + np.float32(0.1))
    epsilon = p.any(1e-5, 1e-3, 0.1)
    return f"BatchNormalization <epsilon = {epsilon}> ({of}, {p.floats(4)}, {p.floats(4)}, {p.floats(4)}, {spread})"


def _activated(p: _Pair, of: str) -> str:
    low, high = sorted(float(v) for v in p.rng.choice([-3.0, -1.0, 0.0, 0.5, 6.0], 2, replace=False))
    bounds = p.constant(np.float32(low)), p.constant(np.float32(high))
    return str(
        p.any(
            f"Relu ({of})",
            f"Clip ({of}, {bounds[0]}, {bounds[1]})",
            f"Clip ({of}, , {bounds[1]})",
            f"Clip ({of}, {bounds[0]})",
            f"LeakyRelu <alpha = {p.any(0.1, -0.5, 2.0)}> ({of})",
            f"HardSigmoid <alpha = {p.any(0.2, 0.5)}, beta = {p.any(0.5, -0.25)}> ({of})",
            f"PRelu ({of}, {p.floats(4, 1, 1)})",
            f"Elu <alpha = {p.any(1.0, 0.3)}> ({of})",
            f"ThresholdedRelu <alpha = {p.any(0.0, 1.0)}> ({of})",
            f"HardSwish ({of})",
            f"Sigmoid ({of})",
            f"Softplus ({of})",
            f"Abs ({of})",
            f"Neg ({of})",
            f"Sign ({of})",
        )
    )


def _beside(p: _Pair, of: str) -> str:
    other = p.any((1, 4, 1, 1), (4, 1, 1), (6,), (1,), (), (7, 1), (1, 1, 7, 6), (1, 4, 7, 6))
    operator, constant = p.any("Add", "Sub", "Mul", "Div", "Max", "Min"), p.floats(*other)
    if operator == "Div":
        p.weights[constant] = np.where(p.weights[constant] == 0, np.float32(2), p.weights[constant]).astype(np.float32)
    reads = (of, constant) if p.any(0, 1, 1) else (constant, of)
    return f"{operator} ({', '.join(reads if operator != 'Div' else (of, constant))})"


def _same_conv(p: _Pair) -> str:
    return f"Conv <pads = [1, 1, 1, 1], group = {p.any(1, 4)}> (x, "


def _cast(p: _Pair) -> str:
    types = {"float16": 10, "int32": 6, "int64": 7, "bool": 9, "double": 11, "uint8": 2, "int8": 3}
    names = [p.any(*types) for _ in range(p.any(1, 2))]
    lines, last = "", "x"
    if {"uint8", "int8"} & set(names):  # what does not fit means nothing
        low, high = p.constant(np.float32(0)), p.constant(np.float32(100))
        lines, last = f"c = Clip (x, {low}, {high}) ", "c"
    for step, name in enumerate(names):
        lines, last = lines + f"a{step} = Cast <to = {types[name]}> ({last}) ", f"a{step}"
    return f"{lines}y = Cast <to = 1> ({last})"


def _matrices(p: _Pair) -> str:
    p.input = p.any("float[5,6] x", "float[2,5,6] x", "float[1,6] x")
    flat = p.input.count(",") == 1
    scale = p.constant(np.float32(p.any(0.0, 0.5, -2.0)))
    added = p.floats(*p.any((7,), (1, 7), (1,), (), (5, 1) if "5" in p.input else (1, 1)))
    product = f"MatMul (x, {p.floats(6, 7)})"
    if flat and p.any(0, 1):
        product = f"Gemm <alpha = {p.any(1.0, 0.5)}, beta = {p.any(1.0, 0.5)}, transB = 1> (x, {p.floats(7, 6)}, {p.floats(7)})"
    tail = p.any(
        f"y = Add (a, {added})",
        f"b = Add (a, {added}) y = Relu (b)",
        f"b = Mul (a, {scale}) y = Add (b, {added})",
        f"y = Div (a, {p.constant(np.float32(4))})",
        "b = Transpose (a) y = Relu (b)",
        f"b = Transpose (a) c = Transpose (b) y = Add (c, {added})",
        f"y = Softmax <axis = {p.any(0, -1)}> (a)",
        f"y = ReduceSum <keepdims = {p.any(0, 1)}> (a, {p.ints(p.any(0, -1))})",
        f"b = MatMul (a, {p.floats(7, 3)}) y = Tanh (b)",
        "y = Concat <axis = -1> (a, x)",
    )
    return f"a = {product} {tail}"


def _moved(p: _Pair) -> str:
    def one(of: str, to: str) -> str:
        kept = p.any("[0, -1, 6]", "[4, 42]", "[-1]")
        shape = p.ints(*(int(v) for v in kept.strip("[]").split(",")))
        return str(
            p.any(
                f"{to} = Transpose <perm = {list(map(int, p.rng.permutation(4)))}> ({of})",
                f"{to} = Transpose <perm = [0, 2, 3, 1]> ({of})",
                f"{to}r = Reshape ({of}, {shape}) {to} = Reshape ({to}r, {p.ints(1, 4, 7, 6)})",
                f"{to}s = Squeeze ({of}, {p.ints(0)}) {to} = Unsqueeze ({to}s, {p.ints(0)})",
                f"{to} = Slice ({of}, {p.ints(0)}, {p.ints(100)}, {p.ints(p.any(1, 2, 3))}, {p.ints(p.any(1, 2))})",
                f"{to} = Slice ({of}, {p.ints(-1)}, {p.ints(-100)}, {p.ints(p.any(1, 2, 3))}, {p.ints(-1)})",
                f"{to}p, {to}q = Split <axis = 1> ({of}, {p.ints(1, 3)}) {to} = Concat <axis = 1> ({to}q, {to}p)",
                f"{to} = Gather <axis = {p.any(1, 2, 3)}> ({of}, {p.ints(2, 0, 3, 1)})",
                f"{to} = Expand ({of}, {p.ints(2, 1, 1, 1)})",
                f"{to} = Tile ({of}, {p.ints(1, 2, 1, 1)})",
            )
        )

    return one("x", "a") + " " + one("a", "b") + f" y = {p.any('Relu', 'Neg', 'Identity')} (b)"


def _neutral(p: _Pair) -> str:
    number = p.constant(
        np.float32(p.any(0.0, 1.0, 2.0, 0.5, -1.0)).reshape(p.any((), (1,), (1, 1, 1, 1, 1)[: p.any(1, 4)]))
    )
    first = p.any("Add", "Sub", "Mul", "Max", "Min")
    return p.any(
        f"a = {first} (x, {number}) y = {p.any('Add', 'Mul', 'Sub')} (a, {number})",
        f"a = {first} ({number}, x) y = Relu (a)",
        f"a = Abs (x) y = Pow (a, {number})",
        "a = Neg (x) y = Neg (a)",
        "a = Abs (x) b = Neg (x) c = Abs (b) y = Sub (a, c)",
        "a = Exp (x) y = Log (a)",
        "a = Sigmoid (x) y = Mul (x, a)",
        "a = Softplus (x) b = Tanh (a) y = Mul (x, b)",
        "a = Sub (x, x) y = Add (a, x)",
        f"a = Greater (x, {number}) b = Not (a) c = Not (b) y = Where (c, x, {number})",
        f"a = Less (x, {number}) b = Not (a) y = Cast <to = 1> (b)",
        f"a = Equal (x, {number}) b = Not (a) y = Where (b, x, {number})",
        "a = Mul (x, x) b = Sqrt (a) y = Sub (b, x)",
        "a = Floor (x) b = Sub (x, a) y = Ceil (b)",
        "a = Reciprocal (x) y = Mul (a, x)",
    )


def _reduced(p: _Pair) -> str:
    axis, kept = p.ints(p.any(1, 2, 3)), p.any(0, 1)
    return p.any(
        f"a = ReduceMean <keepdims = 1> (x, {p.ints(-1)}) b = Sub (x, a) c = Mul (b, b)"
        f" d = ReduceMean <keepdims = 1> (c, {p.ints(-1)})"
        f" e = Add (d, {p.constant(np.float32(p.any(1e-5, 0.1)))}) f = Sqrt (e) g = Div (b, f) y = Mul (g, {p.floats(6)})",
        f"a = ReduceMax <keepdims = 1> (x, {p.ints(1)}) y = {p.any('Sub', 'Div', 'Equal')} (x, a)".replace(
            "y = Equal (x, a)", "e = Equal (x, a) y = Cast <to = 1> (e)"
        ),
        f"a = Softmax <axis = {p.any(1, -1)}> (x) y = Log (a)",
        f"a = Softmax <axis = {p.any(1, -1)}> (x) b = ArgMax <axis = 1> (a) y = Cast <to = 1> (b)",
        f"a = ReduceSum <keepdims = {kept}> (x, {axis})"
        f" y = {p.any('ReduceMax', 'ReduceMin', 'ReduceL2')} <keepdims = 0> (a, {p.ints(-1)})",
        f"a = Exp (x) b = ReduceSum <keepdims = {kept}> (a, {axis}) y = Log (b)",
        "a = GlobalAveragePool (x) b = Flatten (a) y = Relu (b)",
        f"a = Relu (x) y = ReduceMin <keepdims = {kept}> (a, {axis})",
        f"a = Neg (x) b = ReduceMax <keepdims = {kept}> (a, {axis}) y = Neg (b)",
        f"a = Transpose <perm = [0, 2, 3, 1]> (x) y = ReduceMax <keepdims = {kept}> (a, {p.ints(p.any(1, 3))})",
    )


def _quantised(p: _Pair) -> str:
    scale, zero = p.constant(np.float32(p.any(0.02, 0.1))), p.constant(np.uint8(p.any(0, 128)))
    scale2, zero2 = p.constant(np.float32(p.any(0.02, 0.05))), p.constant(np.uint8(p.any(0, 100)))
    pair = f"q = QuantizeLinear (x, {scale}, {zero}) d = DequantizeLinear (q, {scale}, {zero})"
    inner = p.any(
        "Relu (d)",
        "Transpose <perm = [0, 2, 3, 1]> (d)",
        _pool(p, "d"),
        f"Clip (d, {p.constant(np.float32(p.any(0, -1)))}, {p.constant(np.float32(6))})",
        "LeakyRelu <alpha = 0.1> (d)",
        "Sigmoid (d)",
        "Add (d, d)",
    )
    return f"{pair} a = {inner} r = QuantizeLinear (a, {scale2}, {zero2}) y = DequantizeLinear (r, {scale2}, {zero2})"


_TEMPLATES: Mapping[str, Callable[[_Pair], str]] = {
    "pad, pool": lambda p: _pad(p) + f"y = {_pool(p)}",
    "pad, conv": lambda p: _pad(p) + f"y = {_conv(p)}",
    "pad, reduction": lambda p: _pad(p) + f"y = ReduceMax <keepdims = {p.any(0, 1)}> (a, {p.ints(2, 3)})",
    "pad, slice": lambda p: _pad(p) + f"y = Slice (a, {p.ints(0)}, {p.ints(-1)}, {p.ints(p.any(2, 3))})",
    "activations": lambda p: f"a = {_activated(p, 'x')} y = {_activated(p, 'a')}",
    "conv, activation": lambda p: f"a = {_conv(p, 'x')} y = {_activated(p, 'a')}",
    "conv, beside": lambda p: (
        f"a = {_same_conv(p)}{p.floats(4, 4, 3, 3)}) b = {_beside(p, 'a')} y = {_activated(p, 'b')}".replace(
            "group = 4", "group = 1"
        )
    ),
    "conv, sum": lambda p: (
        f"a = Conv <pads = [1, 1, 1, 1]> (x, {p.floats(4, 4, 3, 3)})"
        f" b = {p.any('Add', 'Mul', 'Sub')} (a, x) y = {_activated(p, 'b')}"
    ),
    "conv, normalisation": lambda p: f"a = {_conv(p, 'x')} b = {_normalised(p, 'a')} y = {_activated(p, 'b')}",
    "normalisation, conv": lambda p: f"a = {_normalised(p, 'x')} y = {_conv(p, 'a')}",
    "beside, conv": lambda p: f"a = {_beside(p, 'x')} y = {_conv(p, 'a')}",
    "conv, pool": lambda p: f"a = {_conv(p, 'x')} y = {_pool(p)}",
    "activation, pool": lambda p: f"a = {_activated(p, 'x')} y = {_pool(p)}",
    "pool, activation": lambda p: f"a = {_pool(p, 'x')} y = {_activated(p, 'a')}",
    "beside, beside": lambda p: f"a = {_beside(p, 'x')} y = {_beside(p, 'a')}",
    "casts": _cast,
    "matrices": _matrices,
    "moved": _moved,
    "neutral": _neutral,
    "reduced": _reduced,
    "quantised": _quantised,
}


def pair(seed: int) -> tuple[str, onnx.ModelProto]:
    """The pair of a seed: the kind of pairs that it is of, in turn, and the model."""
    name = list(_TEMPLATES)[seed % len(_TEMPLATES)]
    made = _Pair(np.random.default_rng(seed))
    body = _TEMPLATES[name](made)
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 19]> pair ({made.input}) => (float y) {{ {body} }}'
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, k) for k, array in made.weights.items())
    return name, proto


def check(name: str, seed: int, folder: Path, done: Block, only: Sequence[str] = engines.FAST) -> None:
    """A pair on each of some backends, on inputs of every kind."""
    kind, proto = pair(seed)
    try:
        graph = prepare(to_model(proto), {})
        first = draw_inputs(graph.model, seed)
        feeds = {"first": first, **dict(kinds(graph, first))}
        for given in feeds.values():
            evaluate(graph.model, given)
    except BricolageError as error:
        done.void += 1
        done.notes[f"{kind}: {error}"[:60]] += 1
        return
    for backend in engines.installed(tuple(only)):
        try:
            told = _told(backend, graph, feeds)
        except Exception as error:  # it says so itself: nothing wrong is taken for right
            done.notes[f"{backend.name} fails: {str(error)[:60]}"] += 1
            told = None
        if told is None:
            done.refused += 1
            continue
        done.tested += 1
        done.notes[f"{kind} on {backend.name}"] += 1
        if told:
            subject = f"{backend.name} {registry.version(backend.name)}"
            finding = Finding(name, seed, subject, "value", f"{kind}, {told[0]} inputs: {told[1]}", {})
            text = script(backend.name, finding)
            done.findings.append(store(folder / "findings", finding, proto, feeds[told[0]], text).name)


def _told(backend: Backend, graph: Graph, feeds: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | tuple[()] | None:
    """The kind of inputs on which both operators together are wrong and each alone is right, and what is wrong; nothing where
    there is none; None where the backend declines the model."""
    usual = backend.configs("highest", host())[0]
    try:
        found = _excess(backend, graph.model, list(feeds.values()), usual)
    except (Refused, UnsupportedOperator):
        return None
    for (kind, given), excess in zip(feeds.items(), found, strict=True):
        if excess <= _FAR:
            continue
        if not _right_alone(backend, graph, given, usual):
            return ()
        config = backend.unoptimised(usual)
        without = (
            ""
            if config is None
            else f", {_excess(backend, graph.model, [given], config)[0]:.1e} without its optimisations"
        )
        return kind, f"the relative error is {excess:.1e}{without}"
    return ()


def _excess(backend: Backend, model: ir.Model, feeds: Sequence[Mapping[str, Any]], config: KernelConfig) -> list[float]:
    """How far a backend's answers to several inputs are off, beyond what rounding explains."""
    with scratch.using(scratch.temporary()) as folder:
        region = write_region(model.clone(), folder)
        kernel = backend.compile(region, config, _RESOURCES)
        names = [info.name for info in region.outputs]
        told = []
        for given in feeds:
            found = run_bound(kernel, region, [given[info.name] for info in region.inputs], 1)[0]
            told.append(beyond_rounding(model, dict(given), dict(zip(names, found, strict=True)), evaluate).excess)
    return told


def _right_alone(backend: Backend, graph: Graph, given: Mapping[str, Any], config: KernelConfig) -> bool:
    """Whether a backend is right on each operator of a model, with the values that flow into it."""

    def right(operator: Operator) -> bool:
        region = Region(graph, 1 << operator.number)
        names = {value.name or "" for value in region.inputs} - set(given)
        values = engines.flowing(graph, given, names)
        own = {value.name or "": values[value.name or ""] for value in region.inputs}
        try:
            return _excess(backend, extract_region(region), [own], config)[0] <= _FAR
        except (Refused, UnsupportedOperator):
            return True

    return all(map(right, graph.operators))
