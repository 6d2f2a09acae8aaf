"""Random inputs fit what the model does with them; the user's own are checked by name, type, shape and value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bricolage import errors
from bricolage.verify import inputs as inputs_
from bricolage.verify.inputs import check_inputs, choose_sample, draw_inputs, judge, not_finite
from bricolage.verify.npz_files import read_arrays
from bricolage.verify.roles import role, saturating
from tests.verify.models import BOOL, I64, F, bert_like, convolutional, looping, make

ML, STRING = "ai.onnx.ml", TensorProto.STRING


def value_of(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.inputs if value.name == name)


# --- drawing ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 7), st.integers(2, 60), st.integers(1, 9))
def test_indices_lie_in_their_tables_and_masks_end_in_zeros(
    seed: int, attempt: int, vocabulary: int, sequence: int
) -> None:
    model = bert_like(vocabulary, sequence, sequence)
    drawn = draw_inputs(model, seed, attempt)
    for name, bound in (("input_ids", vocabulary), ("position_ids", sequence), ("token_type_ids", 2)):
        assert drawn[name].dtype == np.int64
        assert drawn[name].min() >= 0 and drawn[name].max() < bound
    mask = drawn["attention_mask"]
    assert set(np.unique(mask)) <= {0, 1}
    assert (mask[:, 0] == 1).all() and (np.diff(mask, axis=1) <= 0).all()
    if sequence > 1 and attempt % 3 != 2:
        assert (mask == 0).any()


def test_the_same_seed_gives_the_same_inputs() -> None:
    model = bert_like()
    first, again, other = draw_inputs(model, 1), draw_inputs(model, 1), draw_inputs(model, 2)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["input_ids"], other["input_ids"])


def test_roles() -> None:
    model = bert_like(50, 6)
    assert role(value_of(model, "input_ids")).bound == 50
    assert role(value_of(model, "position_ids")).bound == 6
    assert role(value_of(model, "token_type_ids")).bound == 2
    assert role(value_of(model, "attention_mask")).kind == "mask"
    assert role(value_of(convolutional(), "x")).kind == "float"


def test_a_mask_is_recognised_by_use_alone() -> None:
    model = bert_like()
    value_of(model, "attention_mask").name = "third"
    assert role(value_of(model, "third")).kind == "mask"


def test_roles_of_sizes_and_lengths() -> None:
    count = make(
        [helper.make_node("TopK", ["x", "k"], ["y", "i"])],
        {"x": (F, [9]), "k": (I64, [1])},
        {"y": (F, ["n"]), "i": (I64, ["n"])},
    )
    assert role(value_of(count, "k")).kind == "size"
    assert choose_sample(count).quality.finite == 1.0
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((1, 4, 3)).astype(np.float32),
        "r": rng.standard_normal((1, 4, 4)).astype(np.float32),
    }
    recurrent = make(
        [helper.make_node("RNN", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=4)],
        {"x": (F, [5, 2, 3]), "lengths": (TensorProto.INT32, [2])},
        {"y": (F, [5, 1, 2, 4])},
        constants,
    )
    assert role(value_of(recurrent, "lengths")).bound == 6
    drawn = draw_inputs(recurrent)["lengths"]
    assert drawn.dtype == np.int32 and (drawn >= 1).all() and (drawn <= 5).all()


def test_every_element_type_can_be_drawn() -> None:
    kinds = (
        "FLOAT",
        "FLOAT16",
        "DOUBLE",
        "BFLOAT16",
        "INT8",
        "UINT8",
        "INT16",
        "UINT16",
        "INT32",
        "INT64",
        "BOOL",
        "STRING",
    )
    for kind in kinds:
        element = getattr(TensorProto, kind)
        model = make([helper.make_node("Identity", ["x"], ["y"])], {"x": (element, [2, 3])}, {"y": (element, [2, 3])})
        drawn = draw_inputs(model)["x"]
        assert drawn.shape == (2, 3)
        assert kind == "STRING" or drawn.dtype == ir.DataType[kind].numpy()


def test_a_draw_that_gives_nan_is_replaced() -> None:
    """The logarithm of a normal number is NaN half of the time; a later draw is positive."""
    model = make([helper.make_node("Log", ["x"], ["y"])], {"x": (F, [64])}, {"y": (F, [64])})
    sample = choose_sample(model)
    assert sample.quality.good and np.isfinite(sample.reference["y"]).all()
    assert (draw_inputs(model, 0, 0)["x"] < 0).any()


def test_a_draw_that_gives_a_constant_is_replaced() -> None:
    """Clipping normal numbers to [100, 200] gives 100 everywhere."""
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    model = make(nodes, {"x": (F, [64])}, {"y": (F, [64])}, {"low": np.float32(100), "high": np.float32(200)})
    assert choose_sample(model).quality.good


def test_a_model_that_always_gives_nan_has_no_reference() -> None:
    nodes = [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Div", ["z", "z"], ["y"])]
    with pytest.raises(errors.NoReference, match="NaN"):
        choose_sample(make(nodes, {"x": (F, [4])}, {"y": (F, [4])}))


def test_control_flow_gets_good_inputs() -> None:
    assert choose_sample(looping()).quality.good


def test_judging() -> None:
    assert judge([np.array([1.0, 2.0])]).good
    assert judge([np.array(5.0), np.zeros((0, 2)), np.array(["a"])]).good
    assert judge([np.array([1.0, np.nan])]).finite == 0.0
    assert judge([np.ones(3), np.arange(3)]).varied == 0.5
    assert judge([np.zeros(3)]).filled == 0.0
    assert judge([[np.ones(2)], None]).varied == 0.0


def test_symbolic_inputs_cannot_be_drawn() -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, ["batch", 3])}, {"y": (F, ["batch", 3])})
    with pytest.raises(errors.UnboundDimension, match="'batch'"):
        draw_inputs(model)


def test_inputs_of_unknown_rank_cannot_be_drawn() -> None:
    model = ir.Model(ir.Graph([ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))], [], nodes=[]), ir_version=8)
    with pytest.raises(errors.UnboundRank, match="'x'.*--input"):
        draw_inputs(model)


def test_sequences_can_be_drawn() -> None:
    graph = helper.make_graph(
        [helper.make_node("ConcatFromSequence", ["q"], ["y"], axis=0)],
        "g",
        [helper.make_tensor_sequence_value_info("q", F, None)],
        [helper.make_tensor_value_info("y", F, None)],
    )
    from bricolage.frontends import to_model

    model = to_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    sample = choose_sample(model)
    assert sample.quality.good and sample.reference["y"].shape == (6, 3)


def test_parts_of_a_sequence_have_the_sizes_that_are_stated() -> None:
    kind = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    given = ir.Value(name="q", type=kind, shape=ir.Shape([None, 2]))
    parts = draw_inputs(ir.Model(ir.Graph([given], [], nodes=[]), ir_version=8))["q"]
    assert {part.shape for part in parts} == {(3, 2)}


@pytest.mark.parametrize(
    ("op_type", "domain", "kind", "attributes", "known"),
    [
        ("LabelEncoder", ML, STRING, {"keys_strings": ["a", "b"], "values_int64s": [1, 2]}, {"a", "b", "elsewhere"}),
        ("LabelEncoder", ML, I64, {"keys_int64s": [5, 9], "values_int64s": [1, 2]}, {5, 9, 10}),
        ("OneHotEncoder", ML, STRING, {"cats_strings": ["a", "b"], "zeros": 0}, {"a", "b"}),
        ("OneHotEncoder", ML, I64, {"cats_int64s": [5, 9], "zeros": 0}, {5, 9}),
        ("Cast", "", STRING, {"to": F}, {"0", "1", "7", "12"}),
    ],
)
def test_what_an_operator_knows_is_drawn(
    op_type: str, domain: str, kind: int, attributes: dict, known: set[object]
) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, [60])], [helper.make_tensor_value_info("y", F, None)]
    )
    drawn = draw_inputs(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])))["x"]
    assert set(drawn.tolist()) == known


# --- the user's own ---------------------------------------------------------------------------------------------


def two_inputs() -> ir.Model:
    return make(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        {"a": (F, ["batch", 3]), "b": (F, ["batch", 3])},
        {"y": (F, ["batch", 3])},
    )


def test_good_inputs_pass(tmp_path: Path) -> None:
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.zeros((2, 3), np.float32)}
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    loaded = check_inputs(two_inputs(), read_arrays(path))
    assert list(loaded) == ["a", "b"]
    np.testing.assert_array_equal(loaded["a"], arrays["a"])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"b": None}, errors.MissingInput, "'b'.*a: float batch×3"),
        ({"c": np.ones(1)}, errors.UnknownInput, "'c'"),
        ({"a": np.ones((2, 3))}, errors.WrongType, "float64.*float32"),
        ({"a": np.ones((2, 4), np.float32)}, errors.WrongShape, r"\[2, 4\].*\[batch, 3\]"),
        ({"a": np.ones((2, 3, 1), np.float32)}, errors.WrongShape, "'a'"),
        ({"b": np.ones((5, 3), np.float32)}, errors.WrongShape, r"'b'.*\[2, 3\]"),
    ],
)
def test_wrong_inputs_are_refused(change: dict, error: type[Exception], words: str) -> None:
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.zeros((2, 3), np.float32), **change}
    with pytest.raises(error, match=words) as caught:
        check_inputs(two_inputs(), {name: array for name, array in arrays.items() if array is not None})
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


def test_bad_input_files(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFile):
        read_arrays(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello", encoding="utf-8")
    np.save(tmp_path / "single.npy", np.ones(3))
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    np.savez(tmp_path / "cut.npz", a=np.ones(1000))
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("text.npz", "single.npy", "objects.npz", "cut.npz"):
        with pytest.raises(errors.BadOption, match="savez"):
            read_arrays(tmp_path / name)


def test_bfloat16_survives_a_file(tmp_path: Path) -> None:
    import ml_dtypes

    kind = TensorProto.BFLOAT16
    model = make([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, [2])}, {"y": (kind, [2])})
    np.savez(tmp_path / "x.npz", x=np.array([1, 2], ml_dtypes.bfloat16))
    assert check_inputs(model, read_arrays(tmp_path / "x.npz"))["x"].dtype == ml_dtypes.bfloat16


def test_boolean_inputs_are_drawn_true_and_false() -> None:
    model = make([helper.make_node("Not", ["flags"], ["y"])], {"flags": (BOOL, [40])}, {"y": (BOOL, [40])})
    assert set(draw_inputs(model)["flags"].tolist()) == {True, False}
    assert inputs_.choose_sample(model).quality.good


def detector() -> ir.Model:
    """Finds thin dark strokes on light ground: their contrast with the neighbourhood, far above what noise has."""
    mean = np.full((1, 1, 5, 5), 1 / 25, np.float32)
    nodes = [
        helper.make_node("Abs", ["x"], ["even"]),
        helper.make_node("ReduceMean", ["even"], ["level"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Sub", ["level", "even"], ["less"]),
        helper.make_node("Conv", ["x", "w"], ["around"], pads=[2, 2, 2, 2]),
        helper.make_node("Sub", ["around", "x"], ["contrast"]),
        helper.make_node("Abs", ["less"], ["uneven"]),
        helper.make_node("ReduceMean", ["uneven"], ["noise"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["noise", "strict"], ["doubt"]),
        helper.make_node("Sub", ["contrast", "doubt"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["p"]),
        helper.make_node("Reshape", ["p", "flat"], ["y"]),
    ]
    constants = {"w": mean, "strict": np.float32(40), "flat": np.int64([-1])}
    return make(nodes, {"x": (F, [1, 1, 64, 64])}, {"y": (F, [4096])}, constants, opset=13)


def test_inputs_that_saturate_a_map_are_replaced_with_a_word() -> None:
    sample = choose_sample(detector())
    first = judge([choose_sample(detector(), candidates=1).reference["y"]], saturating(detector()))
    assert first.open == 0.0 and first.varied == 1.0, "nothing else is wrong with normal noise"
    assert sample.quality.good and np.ptp(sample.reference["y"]) > 0.1
    assert sample.note == "draw 2, as outputs of the first are saturated"


def test_outputs_that_are_always_saturated_are_told() -> None:
    nodes = [helper.make_node("Add", ["x", "low"], ["s"]), helper.make_node("Sigmoid", ["s"], ["y"])]
    model = make(nodes, {"x": (F, [64])}, {"y": (F, [64])}, {"low": np.float32(-1e4)})
    sample = choose_sample(model)
    assert not sample.quality.good and "--input" in sample.note
    assert str(sample.quality) in ("constant and zero and saturated", "saturated")
    assert not choose_sample(convolutional()).note


def test_small_probabilities_of_many_classes_are_not_called_saturated() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
    assert choose_sample(make(nodes, {"x": (F, [2, 5000])}, {"y": (F, [2, 5000])})).quality.good


@pytest.mark.parametrize("shape", [(), (3,), (400,), (1, 16000), (2, 3, 20, 400), (1, 64, 64, 3), (2, 8, 8)])
def test_strokes_fit_every_shape(shape: tuple[int, ...]) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": (F, shape)}, {"y": (F, shape)})
    drawn = draw_inputs(model, 0, 1)["x"]
    assert drawn.shape == shape and np.isfinite(drawn).all() and np.abs(drawn).max() < 10


def test_nan_and_infinities_of_the_caller_are_taken() -> None:
    arrays = {"a": np.full((2, 3), np.nan, np.float32), "b": np.full((2, 3), -np.inf, np.float32)}
    assert set(check_inputs(two_inputs(), arrays)) == {"a", "b"}
    assert not_finite({**arrays, "c": np.ones(2), "d": [np.ones(1), np.array([np.inf])]}) == ["a", "b", "d"]


def test_an_optional_is_drawn_as_what_it_holds() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    kinds = {"t": tensor, "s": helper.make_sequence_type_proto(tensor)}
    inputs = [helper.make_value_info(name, helper.make_optional_type_proto(kind)) for name, kind in kinds.items()]
    nodes = [helper.make_node("OptionalHasElement", [name], [f"has_{name}"]) for name in kinds]
    outputs = [helper.make_tensor_value_info(f"has_{name}", TensorProto.BOOL, []) for name in kinds]
    graph = helper.make_graph(nodes, "optionals", inputs, outputs)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    drawn = draw_inputs(model)
    assert drawn["t"].shape == (2, 3) and drawn["t"].dtype == np.float32
    assert len(drawn["s"]) > 1 and all(isinstance(one, np.ndarray) for one in drawn["s"])
