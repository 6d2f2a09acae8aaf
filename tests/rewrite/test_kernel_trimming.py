"""The rules about windows on convolutions of any geometry: they apply where their conditions say, and give what the definition of
the operator gives, written here with one product for each tap."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bricolage.rewrite.catalogue import find_rule
from bricolage.rewrite.engine.apply import apply_once
from bricolage.rewrite.rule import Example
from bricolage.verify.reference import evaluate
from tests.rewrite.checking import check_valid

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Geometry:
    """A Conv or ConvTranspose; `inputs` and `outputs` are channels of a group."""

    transposed: bool
    batch: int
    symbolic: bool
    inputs: int
    outputs: int
    group: int
    sizes: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[tuple[int, int]]
    extra: list[int]
    bias: bool

    @property
    def spans(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def model(self) -> ir.Model:
        data = ",".join(map(str, ["N" if self.symbolic else self.batch, self.group * self.inputs, *self.sizes]))
        attributes: dict[str, Any] = {
            "group": self.group,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": [before for before, _ in self.pads] + [after for _, after in self.pads],
        }
        if self.transposed:
            attributes["output_padding"] = self.extra
            weight = (self.group * self.inputs, self.outputs, *self.kernel)
        else:
            weight = (self.group * self.outputs, self.inputs, *self.kernel)
        written = ", ".join(f"{name} = {value}" for name, value in attributes.items())
        operator, given = "ConvTranspose" if self.transposed else "Conv", "x, w, b" if self.bias else "x, w"
        weights = {"w": weight, "b": (self.group * self.outputs,)} if self.bias else {"w": weight}
        return Example(f"float[{data}] x", f"y = {operator}<{written}>({given})", weights).model()

    def apply(self, x: Array, w: Array) -> Array:
        return (self._transposed if self.transposed else self._forward)(x, w)

    def _forward(self, x: Array, w: Array) -> Array:
        x = np.pad(x, [(0, 0), (0, 0), *self.pads])
        made = [(n - s) // t + 1 for n, s, t in zip(x.shape[2:], self.spans, self.strides, strict=True)]
        x = x.reshape(len(x), self.group, self.inputs, *x.shape[2:])
        w = w.reshape(self.group, self.outputs, self.inputs, *self.kernel)
        y = np.zeros((len(x), self.group, self.outputs, *made))
        for tap in itertools.product(*map(range, self.kernel)):
            y += np.einsum("ngi...,goi->ngo...", x[(..., *self._seen(tap, made))], w[(..., *tap)])
        return y.reshape(len(x), self.group * self.outputs, *made)

    def _transposed(self, x: Array, w: Array) -> Array:
        extent = [
            (n - 1) * t + s + e for n, t, s, e in zip(self.sizes, self.strides, self.spans, self.extra, strict=True)
        ]
        x = x.reshape(len(x), self.group, self.inputs, *self.sizes)
        w = w.reshape(self.group, self.inputs, self.outputs, *self.kernel)
        y = np.zeros((len(x), self.group, self.outputs, *extent))
        for tap in itertools.product(*map(range, self.kernel)):
            y[(..., *self._seen(tap, self.sizes))] += np.einsum("ngi...,gio->ngo...", x, w[(..., *tap)])
        y = y.reshape(len(x), self.group * self.outputs, *extent)
        return y[(..., *(slice(a, n - b) for n, (a, b) in zip(extent, self.pads, strict=True)))]

    def _seen(self, tap: Sequence[int], positions: Sequence[int]) -> list[slice]:
        """What a tap meets from so many positions."""
        starts = [k * d for k, d in zip(tap, self.dilations, strict=True)]
        return [slice(a, a + (n - 1) * t + 1, t) for a, n, t in zip(starts, positions, self.strides, strict=True)]

    def met(self, i: int) -> Array:
        """For one spatial axis of a Conv, the tap that carries each position before (second axis) to each after (first); -1
        where there is none."""
        (before, after), size, stride, dilation = self.pads[i], self.sizes[i], self.strides[i], self.dilations[i]
        made = (size + before + after - self.spans[i]) // stride + 1
        found = np.full((made, size), -1)
        for position, tap in itertools.product(range(made), range(self.kernel[i])):
            at = position * stride + tap * dilation - before
            if 0 <= at < size:
                found[position, at] = tap
        return found


@st.composite
def geometries(
    draw: st.DrawFn, *, spatial_ranks: Sequence[int] = (1, 2, 3), transposed: bool = False, plain: bool = False
) -> Geometry:
    """`plain` geometries have, mostly, neither groups nor dilations, and one stride."""

    def numbers(*likely: int) -> list[int]:
        return draw(st.lists(st.sampled_from(likely), min_size=count, max_size=count))

    count = draw(st.sampled_from(spatial_ranks))
    usual = plain and draw(st.integers(0, 5)) > 0
    sizes = [1] * count if draw(st.integers(0, 3)) == 0 else numbers(1, 2, 3, 4)
    strides = [draw(st.integers(1, 3))] * count if usual else numbers(1, 1, 2, 3)
    kernel = numbers(1, 1, 2, 3, 4)
    dilations = [1] * count if usual else numbers(1, 1, 1, 2, 3)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extra = [draw(st.integers(0, stride - 1)) if transposed else 0 for stride in strides]
    pads = []
    for size, stride, span, more in zip(sizes, strides, spans, extra, strict=True):
        before, after = (draw(st.sampled_from([0, 0, 1, 2, 3, 5])) for _ in range(2))
        if transposed:  # something is left
            extent = (size - 1) * stride + span + more
            before = min(before, extent - 1)
            after = min(after, extent - 1 - before)
        else:
            before, after = (0, 0) if span == 1 and draw(st.booleans()) else (before, after)
            after += max(0, span - size - before - after)
        pads.append((before, after))
    return Geometry(
        transposed=transposed,
        batch=draw(st.integers(1, 2)),
        symbolic=draw(st.booleans()),
        inputs=draw(st.integers(1, 2)),
        outputs=draw(st.integers(1, 2)),
        group=1 if usual else draw(st.sampled_from([1, 1, 2])),
        sizes=sizes,
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        extra=extra,
        bias=draw(st.booleans()),
    )


def check(name: str, geometry: Geometry, *, applies: bool) -> ir.Model:
    """The rule applies, or not, and what it makes computes what the definition says. The model that it leaves."""
    model = geometry.model()
    assert (apply_once(model, find_rule(name)) is not None) == applies
    event("applies" if applies else "does not apply")
    if not applies:
        return model
    given = geometry.model().graph.initializers
    weights = {name: np.asarray(value.const_value, np.float64) for name, value in given.items()}
    x = np.random.default_rng(0).standard_normal((geometry.batch, geometry.group * geometry.inputs, *geometry.sizes))
    expected = geometry.apply(x, weights["w"])
    if geometry.bias:
        expected = expected + weights["b"].reshape(-1, *[1] * len(geometry.sizes))
    check_valid(model)
    found = evaluate(model, {"x": x})["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * (1 + np.abs(expected).max()))
    return model


@settings(deadline=None, max_examples=60)
@given(geometries())
def test_exactly_the_taps_that_meet_padding_alone_are_trimmed(geometry: Geometry) -> None:
    kept = []
    for i, (before, after) in enumerate(geometry.pads):
        taps, size, dilation = geometry.met(i), geometry.kernel[i], geometry.dilations[i]
        if (taps >= 0).any():  # by whole dilations: what a tap skips beyond them would be cut from x
            size -= min(taps[taps >= 0].min(), before // dilation)
            size -= min(geometry.kernel[i] - 1 - taps.max(), after // dilation)
        kept.append(size)
    model = check("trim-window", geometry, applies=kept != geometry.kernel)
    weight = model.graph.node(0).inputs[1]
    assert weight is not None and weight.shape is not None and list(weight.shape)[2:] == kept


@settings(deadline=None, max_examples=60)
@given(geometries(spatial_ranks=(2, 3, 3, 3, 4)))
def test_neighbouring_directions_are_joined(geometry: Geometry) -> None:
    idle = [
        k == 1 and pads == (0, 0) and (size == 1 or stride == 1)
        for k, pads, size, stride in zip(geometry.kernel, geometry.pads, geometry.sizes, geometry.strides, strict=True)
    ]
    absent = [done and size == 1 for done, size in zip(idle, geometry.sizes, strict=True)]
    pairs = [(i, i + 1) for i in range(len(idle) - 1)]
    applies = len(idle) > 2 and any(absent[i] or absent[j] or (idle[i] and idle[j]) for i, j in pairs)
    model = check("join-spatial-dimensions", geometry, applies=applies)
    if applies:
        (conv,) = (node for node in model.graph if node.op_type == "Conv")
        assert len(conv.attributes.get_ints("kernel_shape") or ()) == len(idle) - 1


@settings(deadline=None, max_examples=80)
@given(geometries(spatial_ranks=(1, 2, 2, 2, 2, 3), transposed=True, plain=True))
def test_transposed_convolutions_by_phases(geometry: Geometry) -> None:
    stride, *others = geometry.strides
    plain = geometry.group == 1 and set(geometry.dilations) == {1}
    check("transposed-by-phases", geometry, applies=plain and stride > 1 and others == [stride])


@settings(deadline=None, max_examples=40)
@given(geometries(transposed=True, plain=True))
def test_transposed_convolutions_of_one_place(geometry: Geometry) -> None:
    plain = geometry.group == 1 and set(geometry.dilations) == {1}
    reached = all(after >= more for (_, after), more in zip(geometry.pads, geometry.extra, strict=True))
    check("transposed-pixel-as-product", geometry, applies=plain and set(geometry.sizes) == {1} and reached)
