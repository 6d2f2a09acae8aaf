"""What engines are known to fuse is found as exporters write it, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bricolage.backends.claim_matching import Matcher
from bricolage.backends.fused_patterns import ATTENTION, LAYER_NORM, SIBLINGS
from bricolage.backends.interface import Claim, Pattern
from bricolage.graph.graph import Graph, Region
from tests.graph.models import graph

W, AXES, TWO, EPSILON = np.ones((8, 8), np.float32), np.int64([-1]), np.float32(2), np.float32(1e-5)


def found(g: Graph, patterns: Sequence[tuple[Pattern, ...]]) -> set[str]:
    """The largest regions, by the names of what they compute."""
    regions = Matcher(g).regions(Claim("fused", roots) for roots in patterns)
    largest = [one for one in regions if not any(one != other and one & other == one for other in regions)]
    return {"".join(sorted(str(o.outputs[0].name) for o in Region(g, bits).operators)) for bits in largest}


@pytest.mark.parametrize(
    ("scores", "names"),
    [
        ("p=Softmax(s)", "psy"),
        ("d=Mul(s,scale) p=Softmax(d)", "dpsy"),
        ("d=Div(s,scale) m=Add(mask,d) p=Softmax(m)", "dmpsy"),
        ("d=Mul(scale,s) m=Where(c,d,low) p=Softmax(m)", "dmpsy"),
    ],
)
def test_attention(scores: str, names: str) -> None:
    inputs = "float[1,2,8,8] q, float[1,2,8,8] k, float[1,2,8,8] v, float[8,8] mask, bool[8,8] c"
    body = f"s=MatMul(q,k) {scores} y=MatMul(p,v)"
    g = graph(body, inputs, "float[1,2,8,8] y", scale=TWO, low=np.float32(-1e9))
    assert found(g, ATTENTION) == {names}
    assert not found(g, LAYER_NORM) and not found(g, SIBLINGS)


@pytest.mark.parametrize("biased", [False, True])
def test_products_of_one_value(biased: bool) -> None:
    ends = " ".join(f"{name}=Add({name}m,b)" for name in "qkv") if biased else ""
    products = " ".join(f"{name}{'m' * biased}=MatMul(x,w)" for name in "qkv")
    outputs = "float[4,8] q, float[4,8] k, float[4,8] v"
    g = graph(f"{products} {ends}", "float[4,8] x", outputs, w=W, b=np.ones(8, np.float32))
    assert found(g, SIBLINGS) == {"kkmqqmvvm" if biased else "kqv"}


@pytest.mark.parametrize("square", ["p=Pow(d,two)", "p=Mul(d,d)"])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_normalisation_written_out(square: str, affine: bool) -> None:
    end = "z=Mul(w,g) y=Add(z,b)" if affine else "y=Relu(w)"
    body = f"m=ReduceMean(x,axes) d=Sub(x,m) {square} v=ReduceMean(p,axes) a=Add(v,eps) r=Sqrt(a) w=Div(d,r) {end}"
    constants = {"axes": AXES, "two": TWO, "eps": EPSILON, "g": W[0], "b": W[1]}
    g = graph(body, "float[4,8] x", "float[4,8] y", **constants)
    assert found(g, LAYER_NORM) == {"admprvwyz" if affine else "admprvw"}


def test_a_difference_of_two_values_is_no_normalisation() -> None:
    body = (
        "m=ReduceMean(x,axes) d=Sub(x,m) e=Sub(x,m) p=Pow(e,two) v=ReduceMean(p,axes) a=Add(v,eps) r=Sqrt(a) y=Div(d,r)"
    )
    g = graph(body, "float[4,8] x", "float[4,8] y", axes=AXES, two=TWO, eps=EPSILON)
    assert not found(g, LAYER_NORM)
