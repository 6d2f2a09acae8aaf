import numpy as np
import onnx_ir as ir
import pytest

from bricolage.errors import BadOption, InvalidGraph, UnboundDimension, UnknownDimension
from bricolage.graph.graph import describe
from bricolage.graph.prepare import prepare, shape_buckets, simplify, symbolic_dimensions
from bricolage.verify.reference import evaluate
from tests.graph.models import graph, parse

SHAPED = """<ir_version: 8, opset_import: ["" : 18]> t (float[batch,n,8] x) => (float[a,b] y) {
    s=Shape(x) b=Gather<axis=0>(s,zero) u=Unsqueeze(b,axes) r=Concat<axis=0>(u,rest) z=Reshape(x,r) y=Relu(z) }"""
CONSTANTS = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}


def test_shape_computations_fold_away() -> None:
    g = prepare(parse(SHAPED, **CONSTANTS), {"batch": 2, "n": 3})
    assert [operator.op_type for operator in g.operators] == ["Reshape", "Relu"]
    assert g.static
    assert g.outputs[0].sizes == (2, 24)


def test_the_given_model_is_not_changed() -> None:
    model = parse(SHAPED, **CONSTANTS)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    prepare(model, {"batch": 2, "n": 3})
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_simplifying_changes_the_model_itself() -> None:
    model = parse(SHAPED, **CONSTANTS)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert simplify(model).model is model
    assert ir.to_proto(model).SerializeToString(deterministic=True) != before


def test_dimensions_have_names() -> None:
    assert symbolic_dimensions(parse(SHAPED, **CONSTANTS)) == {"batch": ["x"], "n": ["x"]}


def test_unbound_dimensions_are_named_at_once() -> None:
    with pytest.raises(UnboundDimension, match="'n'.*--shape n="):
        prepare(parse(SHAPED, **CONSTANTS), {"batch": 2})
    with pytest.raises(UnboundDimension, match="'batch' and 'n' of input 'x'.*--shape batch=SIZE --shape n=SIZE"):
        prepare(parse(SHAPED, **CONSTANTS), {})


def test_an_unknown_dimension_is_named() -> None:
    with pytest.raises(UnknownDimension, match="'lenght'.*batch, n"):
        prepare(parse(SHAPED, **CONSTANTS), {"batch": 2, "n": 3, "lenght": 4})


def test_contradicting_shapes_are_refused() -> None:
    model = parse(
        '<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x, float[4,5] w) => (float[2,5] y) {y=MatMul(x,w)}'
    )
    with pytest.raises(InvalidGraph):
        prepare(model, {})


def test_random_operators_are_never_folded() -> None:
    g = graph("r=RandomNormal<shape=[4]>() y=Add(x,r)")
    assert len(g) == 2


def test_constants_fold_through_arithmetic() -> None:
    g = graph("a=Mul(w,w) b=Sqrt(a) y=Add(x,b)", w=np.array([1, 2, 3, 4], np.float32))
    assert [operator.op_type for operator in g.operators] == ["Add"]
    assert np.array_equal(next(iter(g.constants.values())).const_value.numpy(), [1, 2, 3, 4])


def test_equal_operators_on_a_weight_fold_to_one_constant() -> None:
    body = "a=Transpose(w) b=Transpose(w) c=Transpose<perm=[0,1]>(w) d=MatMul(x,a) e=MatMul(d,b) y=MatMul(e,c)"
    weight = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    g = graph(body, "float[40] x", "float[40] y", w=weight)
    first, second, third = (operator.inputs[1] for operator in g.operators)
    assert first is second and first is not third


def test_an_output_computed_from_constants_stays_an_output() -> None:
    g = graph("y=Mul(w,w) z=Relu(x)", outputs="float[4] y, float[4] z", w=np.ones(4, np.float32))
    assert {info.name for info in g.outputs} == {"y", "z"}
    assert len(g) == 2


def test_an_input_that_is_an_output_gets_an_operator() -> None:
    g = graph("z=Relu(x)", outputs="float[4] x, float[4] z")
    assert len(g.outputs) == 2
    assert all(g.producer(value) is not None for value in g.model.graph.outputs)


def test_buckets_pair_sizes_by_position() -> None:
    assert shape_buckets({"b": (1, 8), "n": (128,)}) == [{"b": 1, "n": 128}, {"b": 8, "n": 128}]
    assert shape_buckets({}) == [{}]
    with pytest.raises(BadOption, match="--shape.*one size, or 3"):
        shape_buckets({"b": (1, 8), "n": (1, 2, 3)})


def test_outputs_that_are_one_another_keep_their_names() -> None:
    g = graph("p=Relu(x) q=Identity(p) r=Identity(q)", outputs="float[4] p, float[4] q, float[4] r")
    assert [info.name for info in g.outputs] == ["p", "q", "r"]
    names = [value.name for node in g.model.graph for value in node.outputs]
    assert len(set(names)) == len(names)


def test_what_follows_a_group_normalisation_has_a_shape() -> None:
    """onnx 1.23 infers none for its result where another operator reads it."""
    opset = '<ir_version: 10, opset_import: ["" : 21]>'
    body = "t = GroupNormalization <num_groups = 2> (x, g, g) \n y = GroupNormalization <num_groups = 4> (t, g, g)"
    model = parse(f"{opset} t (float[n, 4, 3] x) => (float[n, 4, 3] y) {{ {body} }}", g=np.ones(4, np.float32))
    prepared = prepare(model, {"n": 2})
    assert [operator.op_type for operator in prepared.operators] == ["GroupNormalization"] * 2
    assert prepared.static


def test_what_follows_a_mean_and_variance_normalisation_has_a_shape() -> None:
    """Nor for this one's."""
    opset = '<ir_version: 10, opset_import: ["" : 21]>'
    body = "t = MeanVarianceNormalization <axes = [2]> (x) \n y = Relu (t)"
    prepared = prepare(parse(f"{opset} t (float[n, 4, 3] x) => (float[n, 4, 3] y) {{ {body} }}"), {"n": 2})
    assert [operator.op_type for operator in prepared.operators] == ["MeanVarianceNormalization", "Relu"]
    assert prepared.static and "axes" in prepared.operators[0].node.attributes


@pytest.mark.parametrize(
    ("outputs", "body", "stated"),
    [
        ("float[1, 3] y", "y = Relu(x)", ""),
        ("float[1, n] y", "s = Shape(x) t = Concat<axis=0>(s, one) y = Reshape(x, t)", ""),
        ("float[n] y", "s = Concat<axis=0>(one, end, one) y = Reshape(x, s)", ""),
        ("float[2, 3] y", "t = Relu(x) y = Neg(t)", "float[5, 5] t"),
    ],
    ids=["size", "rank by folding", "rank of a reshape", "inside"],
)
def test_stated_shapes_that_are_wrong_are_not_believed(outputs: str, body: str, stated: str) -> None:
    known = {"one": np.array([1]), "end": np.array([-1])}
    text = f'<ir_version: 10, opset_import: ["" : 18]> t (float[2, 3] x) => ({outputs}) <{stated}> {{ {body} }}'
    prepared = prepare(parse(text, **known), {})
    assert prepared.static
    made = evaluate(prepared.model, {"x": np.ones((2, 3), np.float32)})["y"]
    assert prepared.outputs[0].shape == made.shape
    assert all(describe(node.outputs[0]).shape != (5, 5) for node in prepared.model.graph)
