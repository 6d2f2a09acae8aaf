"""Every model that cannot be worked with is refused by a sentence of the catalogue, exit code 2."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bricolage import errors
from bricolage.frontends import exported_program, to_model
from bricolage.frontends.normal_form import read_normal_form

F = TensorProto.FLOAT


def model(nodes: list, *, opset: int = 18, domains: tuple = (), **changes) -> onnx.ModelProto:
    parts = {
        "inputs": [helper.make_tensor_value_info("x", F, [2])],
        "outputs": [helper.make_tensor_value_info("y", F, [2])],
        "initializer": [],
        **changes,
    }
    graph = helper.make_graph(nodes, "g", parts["inputs"], parts["outputs"], initializer=parts["initializer"])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def relu(source: str = "x", result: str = "y") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [result], name="the_relu")


def valid() -> bytes:
    weights = onnx.numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Clip", ["h"], ["c"], min=0.0, max=9.0),
        helper.make_node("Softmax", ["c"], ["y"], axis=0),
    ]
    outputs = [helper.make_tensor_value_info("y", F, [3])]
    return model(nodes, opset=10, outputs=outputs, initializer=[weights]).SerializeToString()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"hello, this is not a model\n" * 5, "text file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "PNG"),
        (b"GGUF" + bytes(64), "bricolage generate"),
        (b"PK\x03\x04" + bytes(64), "zip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
        (valid()[:-20], "cut short"),
        (valid()[:9], "cut short"),
        (bytes(500), "not a readable"),
    ],
)
def test_not_a_model(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(errors.NotAModel, match=words) as caught:
        to_model(path)
    assert caught.value.exit_code == 2 and str(path) in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFile, match="nowhere"):
        to_model(tmp_path / "nowhere.onnx")
    with pytest.raises(errors.NotAModel, match="folder"):
        to_model(tmp_path)


def test_unknown_operators() -> None:
    with pytest.raises(errors.UnknownOperator, match=r"'odd'.*ai.onnx::Frobnicate"):
        to_model(model([helper.make_node("Frobnicate", ["x"], ["y"], name="odd")]))
    with pytest.raises(errors.UnknownOperator, match=r"'odd'.*my.company::Relu"):
        to_model(
            model([helper.make_node("Relu", ["x"], ["y"], name="odd", domain="my.company")], domains=("my.company",))
        )
    with pytest.raises(errors.UnknownOperator, match="Upsample"):  # deprecated since opset 10
        to_model(model([helper.make_node("Upsample", ["x", "x"], ["y"])]))
    with pytest.raises(errors.UnknownOperator, match="Gelu"):  # newer than the opset of the model
        to_model(model([helper.make_node("Gelu", ["x"], ["y"])]))


def test_unknown_operator_in_a_body() -> None:
    y = helper.make_tensor_value_info("y1", F, [2])
    then = helper.make_graph([helper.make_node("Frobnicate", ["x"], ["y1"], name="deep")], "t", [], [y])
    other = helper.make_graph([relu("x", "y1")], "e", [], [y])
    inputs = [helper.make_tensor_value_info("x", F, [2]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    with pytest.raises(errors.UnknownOperator, match="'deep'"):
        to_model(model([helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)], inputs=inputs))


def test_contributed_operators_are_left_to_the_backends() -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    assert len(to_model(model([node], domains=("com.microsoft",))).graph) == 1


def test_training_operators() -> None:
    domain = "ai.onnx.preview.training"
    node = helper.make_node("Momentum", ["x", "x", "x", "x", "x"], ["y", "z"], name="step", domain=domain)
    with pytest.raises(errors.TrainingOperator, match=r"'step'.*Momentum"):
        to_model(model([node], domains=(domain,)))


@pytest.mark.parametrize("opset", [5, onnx.defs.onnx_opset_version() + 1])
def test_unsupported_opset(opset: int) -> None:
    with pytest.raises(errors.UnsupportedOpset, match=f"{opset}.*6 to"):
        to_model(model([relu()], opset=opset))


def test_malformed_graphs() -> None:
    untyped = onnx.ValueInfoProto(name="x")
    cases = {
        "no type": model([relu()], inputs=[untyped]),
        "no outputs": model([relu()], outputs=[]),
        "nowhere": model([relu("nowhere")]),
        "'nobody'": model([relu()], outputs=[helper.make_tensor_value_info("nobody", F, [2])]),
        "cycle": model([relu("b", "a"), relu("a", "b"), helper.make_node("Add", ["x", "a"], ["y"])]),
        "'x'": model([relu()], inputs=[helper.make_tensor_value_info("x", F, [2])] * 2),
        "Relu|attribute": model([helper.make_node("Relu", ["x"], ["y"], bogus=3)]),
        "type": model([helper.make_node("And", ["x", "x"], ["y"])]),
    }
    for words, bad in cases.items():
        with pytest.raises(errors.InvalidGraph, match=words):
            to_model(bad)


@pytest.mark.parametrize(
    ("op_type", "domain", "attributes"),
    [
        ("Relu", "", {}),
        ("EyeLike", "", {}),
        ("LabelEncoder", "ai.onnx.ml", {"keys_int64s": [1], "values_floats": [1.0]}),
    ],
)
@pytest.mark.parametrize("how", ["plain", "in a function", "written"])
def test_an_input_that_an_operator_needs_is_left_out(
    op_type: str, domain: str, attributes: dict[str, object], how: str, tmp_path: Path
) -> None:
    """Shape inference of onnx 1.23 ends the process at the two last ones."""
    node = helper.make_node(op_type, [""], ["y"], name="bare", domain=domain, **attributes)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    if how == "in a function":
        node.input[0] = "a"
        proto = model([helper.make_node("wrapped", [""], ["y"], domain="own")], domains=("own",))
        proto.functions.append(helper.make_function("own", "wrapped", ["a"], ["y"], [node], imports))
    else:
        proto = model([node])
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    with pytest.raises(errors.InvalidGraph, match=rf"\({op_type}\) has no first input, which it needs"):
        if how == "written":
            (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
            read_normal_form(tmp_path / "m.onnx")
        else:
            to_model(proto)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y, m, v = LayerNormalization<axis=9223372036854775807>(x, x)", "has the axis 9223372036854775807"),
        ("y, m, v = LayerNormalization<axis=2147483648>(x, x)", "has the axis 2147483648"),
        ("y = GatherND<batch_dims=-7>(x, i)", "has batch_dims -7"),
        ("y, m, v = Split<num_outputs=1>(x)", "has 3 outputs, and num_outputs 1"),
    ],
)
def test_attributes_at_which_shape_inference_ends_the_process(text: str, words: str) -> None:
    parsed = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x, int64[2,1] i) => (float[a,b] y) {{ {text} }}"""
    )
    with pytest.raises(errors.InvalidGraph, match=words):
        to_model(parsed)


def test_constants_and_weights_without_a_value() -> None:
    """Found by fuzzing: what reads them assumes that they have one."""
    outside = helper.make_node("Constant", [], ["c"])
    outside.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="of_a_function")
    nameless = helper.make_node("Constant", [], ["c"])
    nameless.attribute.add(name="", type=onnx.AttributeProto.INT, i=1)
    sparse = model([relu()])
    sparse.graph.sparse_initializer.add(dims=[2]).values.dims.append(1)
    ends = [relu(), helper.make_node("Identity", ["c"], ["z"])]
    cases = {
        "refers to a function's attribute": model([outside, *ends]),
        "holds no value": model([nameless, *ends]),
        "data of sparse tensor": sparse,
    }
    for words, bad in cases.items():
        with pytest.raises(errors.InvalidGraph, match=words):
            to_model(bad)


def test_a_value_defined_twice() -> None:
    with pytest.raises(errors.InvalidGraph):
        to_model(model([relu(), relu()]))


def test_weights_that_do_not_fit_their_shape() -> None:
    weights = onnx.TensorProto(name="w", data_type=F, dims=[4], raw_data=bytes(8))
    bad = model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[weights])
    with pytest.raises(errors.InvalidGraph, match="'w'"):
        to_model(bad)


def test_functions_that_call_each_other() -> None:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    bad = model([helper.make_node("A", ["x"], ["y"], domain="f")], domains=("f",))
    for name, other in (("A", "B"), ("B", "A")):
        call = helper.make_node(other, ["a"], ["b"], domain="f")
        bad.functions.append(helper.make_function("f", name, ["a"], ["b"], [call], imports))
    with pytest.raises(errors.InvalidGraph, match=r"[Cc]ycl"):
        to_model(bad)


# --- external data ----------------------------------------------------------------------------------------------

SIZE = 600  # elements: more than what is read at once


def external(folder: Path, location: str, *, length: int | None = 4 * SIZE, offset: int | None = None) -> Path:
    """A model in `folder` that adds `w` from the file `location`."""
    weights = onnx.TensorProto(name="w", data_type=F, dims=[SIZE], data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "length": length, "offset": offset}
    for key, value in entries.items():
        if value is not None:
            weights.external_data.add(key=key, value=str(value))
    shapes = {
        "inputs": [helper.make_tensor_value_info("x", F, [SIZE])],
        "outputs": [helper.make_tensor_value_info("y", F, [SIZE])],
    }
    path = folder / "m.onnx"
    path.write_bytes(
        model([helper.make_node("Add", ["x", "w"], ["y"])], initializer=[weights], **shapes).SerializeToString()
    )
    return path


def data(path: Path, count: int = SIZE) -> Path:
    np.arange(count, dtype=np.float32).tofile(path)
    return path


def weights_of(path: Path) -> np.ndarray:
    tensor = to_model(path).graph.initializers["w"].const_value
    assert tensor is not None
    return tensor.numpy()


def test_external_data_is_mapped(tmp_path: Path) -> None:
    data(tmp_path / "w.bin", 2 * SIZE)
    path = external(tmp_path, "w.bin", offset=4 * SIZE)
    np.testing.assert_array_equal(weights_of(path), np.arange(SIZE, 2 * SIZE, dtype=np.float32))
    nested = tmp_path / "sub"
    nested.mkdir()
    data(nested / "w.bin")
    np.testing.assert_array_equal(weights_of(external(tmp_path, "sub/w.bin", length=None))[:3], [0, 1, 2])


def test_a_relative_path_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data(tmp_path / "w.bin")
    external(tmp_path, "w.bin")
    monkeypatch.chdir(tmp_path)
    loaded = to_model("m.onnx")
    monkeypatch.chdir("/")
    assert loaded.graph.initializers["w"].const_value.numpy()[2] == 2


def test_external_data_missing_or_short(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    with pytest.raises(errors.MissingExternalData, match=r"'w'.*w.bin"):
        to_model(path)
    data(tmp_path / "w.bin", SIZE - 1)
    with pytest.raises(errors.MissingExternalData, match="too short"):
        to_model(path)
    data(tmp_path / "w.bin")
    with pytest.raises(errors.MissingExternalData):
        to_model(external(tmp_path, "w.bin", length=8))


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "sub/../../w.bin"])
def test_external_data_outside(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "sub").mkdir()
    data(tmp_path / "w.bin")
    with pytest.raises(errors.ExternalDataOutside, match="'w'"):
        to_model(external(folder, location))


def test_a_link_that_leads_outside(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    data(tmp_path / "secret.bin")
    (folder / "w.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(errors.ExternalDataOutside, match="outside"):
        to_model(external(folder, "w.bin"))


def test_a_cache_of_links_works(tmp_path: Path) -> None:
    """A download cache keeps a folder of links to a folder of data: the model and its weights lie in the same one."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    external(blobs, "w.bin").rename(blobs / "aaa")
    data(blobs / "bbb")
    (snapshot / "m.onnx").symlink_to(blobs / "aaa")
    (snapshot / "w.bin").symlink_to(blobs / "bbb")
    assert weights_of(snapshot / "m.onnx")[5] == 5


def test_hard_links_work(tmp_path: Path) -> None:
    data(tmp_path / "w0.bin")
    os.link(tmp_path / "w0.bin", tmp_path / "w.bin")
    assert weights_of(external(tmp_path, "w.bin"))[5] == 5


def test_a_model_beyond_two_gigabytes(tmp_path: Path) -> None:
    """A sparse file costs no disk; loading and upgrading must not read it."""
    rows = 2_200_000_000 // 4 // 1024
    weights = onnx.TensorProto(name="w", data_type=F, dims=[rows, 1024], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 1024 * 4)
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["g"]),
        helper.make_node("ReduceSum", ["g"], ["y"], axes=[1], keepdims=0),
    ]
    big = model(
        nodes,
        opset=11,
        inputs=[helper.make_tensor_value_info("i", TensorProto.INT64, [3])],
        outputs=[helper.make_tensor_value_info("y", F, [3])],
        initializer=[weights],
    )
    (tmp_path / "m.onnx").write_bytes(big.SerializeToString())
    loaded = to_model(tmp_path / "m.onnx")
    assert loaded.graph.opset_imports[""] == 18
    assert loaded.graph.initializers["w"].const_value.nbytes > 2**31


# --- anything at all --------------------------------------------------------------------------------------------


def load_or_refuse(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        path.write_bytes(content)
        try:
            to_model(path)
        except errors.UsageError as refusal:
            assert refusal.exit_code == errors.USAGE and refusal.sentence


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(valid())))
def test_any_truncation_loads_or_is_refused(length: int) -> None:
    load_or_refuse(valid()[:length])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(valid()) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_flipped_bytes_load_or_are_refused(flips: list[tuple[int, int]]) -> None:
    content = bytearray(valid())
    for position, byte in flips:
        content[position] = byte
    load_or_refuse(bytes(content))


def test_a_type_noted_as_undefined_is_found():
    weights = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    given = model([helper.make_node("Add", ["x", "w"], ["h"]), relu("h")], initializer=[weights])
    for name in ("w", "h"):
        given.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.UNDEFINED, [2]))
    values = {v.name: v.dtype for node in to_model(given).graph for v in (*node.inputs, *node.outputs) if v is not None}
    assert {str(dtype) for dtype in values.values()} == {"FLOAT"}


def test_what_is_missing_to_read_pytorch_models_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(exported_program, "_look_through", lambda _: None)
    (tmp_path / "m.pt2").touch()
    with pytest.raises(errors.MissingLibrary, match=r"torch is needed to read PyTorch models.*pip install 'torch"):
        exported_program.load_program(tmp_path / "m.pt2")
