"""What becomes of sizes that the user does not give."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.errors import InvalidGraph, UnboundDimension, UnknownDimension
from bricolage.graph.open_sizes import settle_sizes, standing_in
from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.graph.size_hints import named_batch, words
from tests.graph.models import parse

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g '


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


CONV = HEAD + "(float[{batch},3,{high},{wide}] x) => (float[{batch},8,a,b] y) {{ y = Conv(x, w) }}"
TWO = HEAD + "(float[?,{k},4] x, float[?,{j},4] z) => (float[?,?,?] y) {{ y = {op}(x, z) }}"


def asked(text: str, sizes: dict[str, tuple[int, ...]] | None = None, **constants: np.ndarray) -> UnboundDimension:
    with pytest.raises(UnboundDimension) as caught:
        settle_sizes(parse(text, **constants), sizes or {})
    return caught.value


@pytest.mark.parametrize("batch", ["batch", "batch_size", "N", "unk__3", "?", "s0"])
def test_a_batch_takes_one_and_all_others_are_asked_for(batch: str) -> None:
    text = CONV.format(batch=batch, high="?", wide="?")
    error = asked(text, w=ones(8, 3, 3, 3))
    assert error.facts["flags"] == "--shape x.2=224 --shape x.3=224"
    found = settle_sizes(parse(text, w=ones(8, 3, 3, 3)), {"x.2": (64,), "x.3": (32, 64)})
    name = "x.0" if batch == "?" else batch
    assert found.shapes == {name: (1,), "x.2": (64,), "x.3": (32, 64)}
    assert "takes 1" in found.notes[0] and name in found.notes[0]


def test_what_is_no_batch_is_asked_for() -> None:
    for name in ("sequence", "num_nodes", "length", "time"):
        text = HEAD + f"(float[{name},4] x) => (float[{name},4] y) {{ y = Relu(x) }}"
        assert name in str(asked(text))
    fixed = HEAD + "(float[?,4] x) => (float[1,4] y) { y = ReduceSum(x, axis) }"
    assert "'x.0'" in str(asked(fixed, axis=np.array([0])))
    recurrent = HEAD + "(float[?,?,4] x) => (float[?,1,?,8] y) { y, h = GRU<hidden_size=8>(x, w, r) }"
    error = asked(recurrent, w=ones(1, 24, 4), r=ones(1, 24, 8))
    assert error.facts["flags"] == "--shape x.0=128"


def test_proposals_are_multiples_of_strides() -> None:
    body = """c = Conv<strides=[4,4],pads=[1,1,1,1]>(x,w) d = MaxPool<kernel_shape=[2,2],strides=[2,2]>(c)
        y = AveragePool<kernel_shape=[12,12],strides=[12,12]>(d)"""
    error = asked(HEAD + f"(float[n,3,h,w2] x) => (float[n,8,a,b] y) {{ {body} }}", w=ones(8, 3, 3, 3))
    sizes = [int(word.partition("=")[2]) for word in str(error.facts["flags"]).split() if "=" in word]
    assert len(sizes) == 2 and all(size % 96 == 0 for size in sizes)


def test_weights_leave_one_size() -> None:
    model = parse(HEAD + "(float[?,?,8,8] x) => (float[?,?,?,?] y) { y = Conv(x, w) }", w=ones(8, 5, 3, 3))
    found = settle_sizes(model, {})
    assert found.shapes == {"x.0": (1,), "x.1": (5,)}
    assert any("Conv" in note for note in found.notes)


def test_only_one_size_that_fits_is_proposed() -> None:
    error = asked(HEAD + "(float[n,1,?,?] x) => (float[n,10] y) { f = Flatten(x) y = MatMul(f, w) }", w=ones(784, 10))
    assert error.facts["flags"] == "--shape x.2=28 --shape x.3=28"


@given(st.integers(2, 12), st.integers(1, 3))
@settings(max_examples=4, deadline=None)
def test_divisors_of_reshapes_are_found(step: int, more: int) -> None:
    text = HEAD + "(float[n,things] x) => (float[?,?,?] y) { y = Reshape(x, s) }"
    error = asked(text, s=np.array([0, -1, step]))
    assert f"things={step}" in str(error.facts["flags"]) and f"multiple of {step}" in str(error)
    assert prepare(parse(text, s=np.array([0, -1, step])), {"n": 1, "things": step * more}).static


@given(st.sampled_from(["Add", "Mul", "Max"]), st.lists(st.integers(2, 20), min_size=1, max_size=3))
@settings(max_examples=3, deadline=None)
def test_equal_dimensions_are_asked_for_once(op: str, sizes: list[int]) -> None:
    text = TWO.format(op=op, k="k", j="j")
    assert str(asked(text).facts["flags"]).count("--shape") == 1
    for name, other in (("k", "j"), ("j", "k")):
        found = settle_sizes(parse(text), {name: tuple(sizes)})
        assert found.shapes[name] == found.shapes[other] == tuple(sizes)
        assert any("must be equal" in note for note in found.notes)


def test_independent_dimensions_are_not_tied() -> None:
    text = HEAD + "(float[b,k,4] x, float[b,j,4] z) => (float[b,?,4] y) { y = Concat<axis=1>(x, z) }"
    assert str(asked(text).facts["flags"]).count("--shape") == 2


@given(st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=5, deadline=None)
def test_names_that_are_expressions_are_computed(past: int, now: int) -> None:
    interface = 'float[b,past,4] x, float[b,now,4] z, int64[b,"past + 2*now"] m) => (float[b,?,4] y, int64[b,?] o'
    text = HEAD + f"({interface}) {{ y = Concat<axis=1>(x, z) o = Neg(m) }}"
    assert "2*now" not in str(asked(text).facts["flags"])
    found = settle_sizes(parse(text), {"past": (past,), "now": (now,)})
    assert found.shapes["past + 2*now"] == (past + 2 * now,)


def test_what_is_proposed_can_be_computed() -> None:
    """All proposals of one error together, whatever the model: they were tried."""
    tokens = """(int64[b,s] i, int64[b,t] m) => (float[b,s,4] y) {
        e = Gather(w, i) c = Cast<to=1>(m) u = Unsqueeze(c, a) y = Mul(e, u) }"""
    for text, constants in (
        (CONV.format(batch="n", high="?", wide="?"), {"w": ones(8, 3, 3, 3)}),
        (HEAD + tokens, {"w": ones(99, 4), "a": np.array([2])}),
        (HEAD + "(float[n,q] x) => (float[n,?,6] y) { y = Reshape(x, s) }", {"s": np.array([0, -1, 6])}),
    ):
        error = asked(text, **constants)
        flags = str(error.facts["flags"]).replace("--shape ", "").split()
        sizes = {flag.partition("=")[0]: (int(flag.partition("=")[2]),) for flag in flags}
        model = parse(text, **constants)
        found = settle_sizes(model, sizes).shapes
        assert set(found) == set(symbolic_dimensions(model))
        prepare(model, {name: size[0] for name, size in found.items()})


def test_sizes_for_checks_fit_the_model() -> None:
    text = TWO.format(op="Add", k="k", j="j")
    first = {"x.0": 2, "k": 3, "z.0": 5, "j": 7}
    found = standing_in(parse(text), {}, first)
    assert math.gcd(found["k"], found["j"]) == found["k"] and found["x.0"] == found["z.0"]
    assert standing_in(parse(text), {"k": 9}, first)["j"] in (1, 9)
    wrong = HEAD + "(float[n,4] x) => (float[?,?] y) { y = MatMul(x, w) }"
    with pytest.raises(InvalidGraph):
        prepare(parse(wrong, w=ones(5, 3)), {"n": 2})
    with pytest.raises(UnboundDimension, match="none fits.*MatMul"):
        standing_in(parse(wrong, w=ones(5, 3)), {}, {"n": 2})


def test_unknown_names_come_first() -> None:
    with pytest.raises(UnknownDimension, match="'hight'"):
        settle_sizes(parse(CONV.format(batch="n", high="height", wide="width"), w=ones(8, 3, 3, 3)), {"hight": (8,)})


def test_names() -> None:
    assert words("inputHeight_2") == ["input", "height", "2"]
    assert named_batch("batch_size") and named_batch("N") and not named_batch("sequence") and not named_batch("nodes")
