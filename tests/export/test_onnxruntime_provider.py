"""Exported libraries as execution providers of ONNX Runtime: every bit that Python gives, and a text for whatever is wrong."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bricolage.native.library import InstructionSet, LibraryBucket, LibraryTensor
from bricolage.plan import artifact
from bricolage.runtime.c_library.export_model import export_model
from bricolage.runtime.c_library.onnxruntime_provider import write_provider
from bricolage.runtime.load import load
from tests.export.exported import SIZES, Built, build, c_compiler, need, write_artifact

pytest.importorskip("onnxruntime", minversion="1.23")
pytestmark = [pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not here"), pytest.mark.apart]
HEADER = "onnxruntime_c_api.h"


@dataclass(frozen=True)
class Provided:
    """A provider, and the model with the node that it runs."""

    name: str
    library: Path
    context: Path

    @property
    def provider(self) -> str:
        return f"{self.name}ExecutionProvider"


@dataclass(frozen=True)
class Answer:
    """What Python computes."""

    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("provider")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return write_artifact(folder)


@pytest.fixture(scope="module")
def built(folder: Path, path: Path) -> Built:
    """With its weights in a file."""
    return build(export_model(path, folder / "net-c").folder, folder / "net-build", "-DONNXRUNTIME_PROVIDER=ON")


@pytest.fixture(scope="module")
def net(built: Built) -> Provided:
    library = built.folder / "libnet_onnxruntime.so"
    return Provided("net", library, built.weights / "net_ctx.onnx")


@pytest.fixture(scope="module")
def kinds_path(folder: Path) -> Path:
    """Of an artifact with ends of other types, and a scalar."""
    text = (
        '<ir_version: 10, opset_import: ["" : 18]>'
        " net (float[n, 4] a, float[n, 4] b, bool[n, 4] m, float16[n] h, float s)"
        " => (float[n, 4] y, bool[n, 4] z, float16[n] hh, float t)"
        "{ c = Sub (a, b) y = Where (m, c, a) z = Not (m) hh = Mul (h, h) t = Add (s, s) }"
    )
    return write_artifact(folder / "kinds", symbolic=ir.from_proto(onnx.parser.parse_model(text)))


@pytest.fixture(scope="module")
def kinds(folder: Path, kinds_path: Path) -> Provided:
    """A shared library with its weights in it; installed, and its model in a folder without weights."""
    source = export_model(kinds_path, folder / "kinds-c", "kinds", embed=True).folder
    build(source, folder / "kinds-build", "-DONNXRUNTIME_PROVIDER=ON", "-DBUILD_SHARED_LIBS=ON")
    prefix = folder / "in stalled"
    subprocess.run(
        ["cmake", "--install", str(folder / "kinds-build"), "--prefix", str(prefix)], check=True, capture_output=True
    )
    (library,) = prefix.rglob("libkinds_onnxruntime.so")
    (context,) = prefix.rglob("kinds_ctx.onnx")
    assert [file.name for file in context.parent.iterdir()] == ["kinds_ctx.onnx"]
    return Provided("kinds", library, context)


def answer(path: Path, inputs: Mapping[str, np.ndarray]) -> Answer:
    return Answer(inputs, [np.asarray(array) for array in load(path).run(inputs).values()])


@pytest.fixture(scope="module")
def answers(path: Path) -> list[Answer]:
    """Of each bucket."""
    draw, answers = np.random.default_rng(3), list[Answer]()
    for size in SIZES:
        x, ids = draw.standard_normal((size, 64)).astype(np.float32), draw.integers(0, 7, (size, 1))
        answers.append(answer(path, {"x": x, "ids": ids}))
    return answers


@pytest.fixture(scope="module")
def kind_answers(kinds_path: Path) -> list[Answer]:
    """Of the larger bucket; the second one with the same value for `a` and `b`, and 5 for `s`."""
    draw = np.random.default_rng(4)
    a, b = (draw.standard_normal((SIZES[1], 4)).astype(np.float32) for _ in range(2))
    inputs = {"a": a, "b": b, "m": a > b, "h": a[:, 0].astype(np.float16), "s": np.array(3, np.float32)}
    return [answer(kinds_path, inputs), answer(kinds_path, {**inputs, "b": a, "s": np.array(5, np.float32)})]


@contextmanager
def registered(*provided: Provided) -> Iterator[None]:
    """In this process; all sessions must have ended where it ends."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)  # what is refused here is printed, too
    for each in provided:
        onnxruntime.register_execution_provider_library(each.name, str(each.library))
    try:
        yield
    finally:
        gc.collect()
        for each in provided:
            onnxruntime.unregister_execution_provider_library(each.name)


def open_session(provided: Sequence[Provided], model: Path | bytes, **choices: object) -> Any:
    """A session with these providers; the options go to the first one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    for number, each in enumerate(provided):
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == each.provider]
        assert len(devices) == 1 and devices[0].ep_vendor == "bricolage"
        given = {key: str(value) for key, value in choices.items()} if number == 0 else {}
        options.add_provider_for_devices(devices, given)
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options)


def is_equal(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether all bits are."""
    return [array.tobytes() for array in outputs] == [array.tobytes() for array in expected]


@pytest.mark.parametrize("threads", [1, 2])
def test_every_bit_is_python_s(threads: int, net: Provided, answers: list[Answer]) -> None:
    """For two sessions that share threads, also when they run at once."""
    with registered(net):
        sessions = [open_session([net], net.context, threads=threads) for _ in range(2)]
        ends = [(end.name, end.shape, end.type) for end in (*sessions[0].get_inputs(), *sessions[0].get_outputs())]
        assert ends[1:3] == [("ids", ["n", 1], "tensor(int64)"), ("y", ["n", 24], "tensor(float)")]
        assert sessions[0].get_providers()[0] == net.provider
        runs = [(session, answer) for answer in answers for session in sessions] * 20
        with ThreadPoolExecutor(4) as pool:
            same = list(pool.map(lambda run: is_equal(run[0].run(None, run[1].inputs), run[1].outputs), runs))
        assert all(same)
        assert is_equal(sessions[0].run(["hidden"], answers[1].inputs), answers[1].outputs[1:])
        del sessions, runs


def test_two_providers_and_weights_in_the_library(
    net: Provided, kinds: Provided, answers: list[Answer], kind_answers: list[Answer]
) -> None:
    with registered(net, kinds):
        first, second = (open_session([kinds, net], each.context) for each in (net, kinds))
        assert is_equal(first.run(None, answers[1].inputs), answers[1].outputs)
        assert is_equal(second.run(None, kind_answers[0].inputs), kind_answers[0].outputs)
        del first, second


def test_a_value_for_two_inputs_and_a_constant(kinds: Provided, kind_answers: list[Answer]) -> None:
    """ONNX Runtime makes a node of fewer inputs of it."""
    model = onnx.load_model(kinds.context)
    (node,) = model.graph.node
    node.input[1] = "a"
    model.graph.initializer.append(onnx.numpy_helper.from_array(kind_answers[1].inputs["s"], "s"))
    del model.graph.input[4], model.graph.input[1]
    given = {key: value for key, value in kind_answers[1].inputs.items() if key in "amh"}
    with registered(kinds):
        session = open_session([kinds], model.SerializeToString())
        assert is_equal(session.run(None, given), kind_answers[1].outputs)
        node.input[1] = ""
        with pytest.raises(Exception, match="the node lacks the input 'b'"):
            open_session([kinds], model.SerializeToString())
        del session


def test_a_node_in_a_larger_graph(net: Provided, answers: list[Answer]) -> None:
    """Its inputs come from other nodes, and one of its outputs is not used."""
    model = onnx.load_model(net.context)
    (node,) = model.graph.node
    node.input[0], node.output[0] = "shifted", "y_raw"
    before = onnx.helper.make_node("Neg", ["x"], ["shifted"])
    after = onnx.helper.make_node("Neg", ["y_raw"], ["y"])
    nodes = [before, node, after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.value_info.extend(model.graph.output)  # ONNX Runtime infers no types of such a node
    model.graph.value_info[0].name = "y_raw"
    del model.graph.output[1]
    with registered(net):
        session = open_session([net], model.SerializeToString(), weights=net.context.parent)
        for answer in answers:
            (y,) = session.run(None, {**answer.inputs, "x": -answer.inputs["x"]})
            assert is_equal([-y], answer.outputs[:1])
        del session


def test_sizes_that_no_bucket_has_are_refused_with_the_list(net: Provided, answers: list[Answer]) -> None:
    with registered(net):
        session = open_session([net], net.context)
        inputs = answers[1].inputs
        for x, ids, text in ((3, 3, "x 3x64, ids 3x1"), (1, 40, "x 1x64, ids 40x1"), (0, 0, "x 0x64, ids 0x1")):
            with pytest.raises(Exception, match=f"not made for {text}. It was made for: n=1; n=40"):
                session.run(None, {"x": inputs["x"][:x], "ids": inputs["ids"][:ids]})
        assert is_equal(session.run(None, inputs), answers[1].outputs)
        del session


def test_options(net: Provided, answers: list[Answer]) -> None:
    with registered(net):
        for choices, text in (
            ({"threads": "two"}, "'threads' is a number up to 65536, and not 'two'"),
            ({"threads": "70000"}, "not '70000'"),
            ({"sleeps": "2"}, "'sleeps' is a number up to 1, and not '2'"),
            ({"thread": "2"}, "no option 'thread', only weights, threads"),
            ({"instructions": "sparc"}, "lacks the instructions"),
            ({"weights": "/no/such/folder"}, "/no/such/folder: the file of weights cannot be read"),
        ):
            with pytest.raises(Exception, match=text):
                open_session([net], net.context, **choices)
        model = net.context.read_bytes()
        with pytest.raises(Exception, match="name the folder of its weights in the option 'weights'"):
            open_session([net], model)
        chosen = {"map_weights": 1, "leave_helpers": 1, "sleeps": 1, "weights": net.context.parent}
        session = open_session([net], model, **chosen)
        assert is_equal(session.run(None, answers[0].inputs), answers[0].outputs)
        del session


def test_nodes_that_are_not_the_library_s(net: Provided, kinds: Provided, tmp_path: Path) -> None:
    def change(remove: str = "", **values: object) -> bytes:
        model = onnx.load_model(net.context)
        (node,) = model.graph.node
        kept = [attribute for attribute in node.attribute if attribute.name not in (*values, remove)]
        del node.attribute[:]
        node.attribute.extend([*kept, *(onnx.helper.make_attribute(key, value) for key, value in values.items())])
        return bytes(model.SerializeToString())

    def cut(side: str) -> bytes:
        model = onnx.load_model(net.context)
        (node,) = model.graph.node
        for ends in (getattr(node, side), getattr(model.graph, side)):
            ends.pop()
        return bytes(model.SerializeToString())

    weights = tmp_path / "weights.bin"
    weights.write_bytes(net.context.with_name("weights.bin").read_bytes()[:-1])
    with registered(net, kinds):
        for model, text in (
            (kinds.context, "EPContext"),  # of another provider
            (change(source="otherExecutionProvider"), "EPContext"),
            (change(remove="source"), "EPContext"),
            (change(remove="ep_cache_context"), "no attribute ep_cache_context"),
            (change(embed_mode=1), "the library has no weights in it"),
            (change(ep_cache_context=str(weights)), "shorter or longer than the library expects"),
            (cut("input"), "the node has 1 inputs, and the library 2"),
            (cut("output"), "the node has 1 outputs, and the library 2"),
        ):
            with pytest.raises(Exception, match=text):
                open_session([net], model)


def test_types_are_checked(net: Provided, answers: list[Answer]) -> None:
    model = onnx.load_model(net.context)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    with registered(net):
        session = open_session([net], model.SerializeToString(), weights=net.context.parent)
        with pytest.raises(Exception, match="'x' has the element type 6 of ONNX, and not 1"):
            session.run(None, {**answers[0].inputs, "x": np.zeros((1, 64), np.int32)})
        del session


def resident_kb() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 1024


def test_sessions_and_registrations_leave_nothing(net: Provided, answers: list[Answer]) -> None:
    sizes: list[int] = []
    for _ in range(6):
        with registered(net):
            for number in range(50):
                session = open_session([net], net.context)
                if number % 10 == 0:
                    session.run(None, answers[1].inputs)
                del session
        sizes.append(resident_kb())
    assert sizes[-1] - sizes[1] < 4096, sizes
    import onnxruntime

    assert all(device.ep_name != net.provider for device in onnxruntime.get_ep_devices())
    version = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    if version > (1, 23):  # which unloads no library
        assert net.library.name not in Path("/proc/self/maps").read_text()


def test_an_older_onnx_runtime_gets_a_text(net: Provided) -> None:
    """Its table of functions ends before what the provider uses."""
    import onnxruntime

    (runtime,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    get_version = ctypes.CFUNCTYPE(ctypes.c_char_p)

    class Base(ctypes.Structure):
        _fields_ = (("get_api", get_api), ("get_version", get_version))

    find_base = ctypes.CDLL(str(runtime)).OrtGetApiBase
    find_base.restype = ctypes.POINTER(Base)
    real = find_base().contents
    table = ctypes.cast(real.get_api(1), ctypes.POINTER(ctypes.c_void_p))
    read_text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[2] or 0)
    create = ctypes.CDLL(str(net.library)).CreateEpFactories
    create.restype = ctypes.c_void_p
    factories, count = (ctypes.c_void_p * 4)(), ctypes.c_size_t(9)
    for newest in (0, 22):  # of 0, there is not even a status
        base = Base(get_api(lambda version, newest=newest: real.get_api(version) if version <= newest else None),
                    get_version(lambda: b"1.22.1"))  # fmt: skip
        status = create(b"net", ctypes.byref(base), None, factories, 4, ctypes.byref(count))
        assert count.value == 0
        assert bool(status) == bool(newest)
    told = read_text(status)
    assert told == b"netExecutionProvider needs ONNX Runtime 1.23 or newer, and this is 1.22.1"


def test_only_two_functions_are_visible(net: Provided, kinds: Provided) -> None:
    need("nm")
    for each in (net, kinds):
        command = ["nm", "-D", "--defined-only", str(each.library)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert {line.split()[-1] for line in listed.splitlines()} == {"CreateEpFactories", "ReleaseEpFactory"}


def test_two_outputs_of_one_name_and_a_plan_without_inputs(path: Path, tmp_path: Path) -> None:
    """A graph's values have different names; ONNX Runtime's node has an input."""
    plan, _ = artifact.load_artifact(path)
    plan = replace(plan, outputs=tuple(replace(spec, name="y") for spec in plan.outputs))
    ends = [tuple(LibraryTensor("y", "float32", (size, wide)) for wide in (24, 40)) for size in SIZES]
    ids = LibraryTensor("ids", "int64", (1, 1))
    for inputs in ((ids, replace(ids, name="i")), ()):
        buckets = tuple(LibraryBucket((1,), inputs, outputs, ()) for outputs in ends)
        table = InstructionSet("avx2", "weights.bin", "1", np.zeros(64, np.uint8), buckets)
        folder = tmp_path / str(len(inputs))
        (folder / "share" / "net").mkdir(parents=True)
        write_provider(folder, "net", plan, [table])
    assert [file.name for file in (tmp_path / "0").iterdir()] == ["share"]
    graph = onnx.load_model(tmp_path / "2" / "share" / "net" / "net_ctx.onnx", load_external_data=False).graph
    assert [value.name for value in graph.output] == ["y", "y.1"]
    sizes = [[axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in graph.output]
    assert sizes == [["n", 24], ["n", 40]]


def test_the_declarations_are_those_of_the_published_header(built: Built) -> None:
    """The C compiler compares all types and places of functions."""
    places = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    place = next((place for place in places if place and (Path(place) / "onnxruntime_ep_c_api.h").exists()), None)
    if place is None:
        pytest.skip(f"{HEADER} of ONNX Runtime 1.23 or newer is not here: its folder is named by ONNXRUNTIME_INCLUDE")
    source = built.source / "onnxruntime" / "net_provider.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DONNXRUNTIME_HEADERS", "-isystem", place]
    words = [c_compiler(), *flags, f"-I{built.source / 'include'}", str(source)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
