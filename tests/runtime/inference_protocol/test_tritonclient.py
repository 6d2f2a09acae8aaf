"""NVIDIA's client as the judge: what it asks of a server, over HTTP with JSON and binary tensors, and over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.tools.server_process import PATIENCE_S, Served
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import load
from tests.needed import needs
from tests.runtime.inference_protocol.conftest import LIBRARIES, TYPES

for library_name in (*LIBRARIES, "tritonclient"):
    needs(library_name)
grpc_client = pytest.importorskip("tritonclient.grpc")
http_client = pytest.importorskip("tritonclient.http")
ROWS = np.array([[1, -2, 3, -4], [0.5, 0, -0.25, 1e-30]], np.float32)
NUMPY = {"FP32": "float32", "FP64": "float64"}


@pytest.fixture(params=["http", "grpc"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return http_client if request.param == "http" else grpc_client  # type: ignore[no-any-return]


@pytest.fixture
def client(library: ModuleType, served: Served) -> Iterator[Any]:
    port = served.http_port if library is http_client else served.grpc_port
    with library.InferenceServerClient(f"127.0.0.1:{port}") as made:
        yield made


@pytest.fixture(scope="module")
def affine(artifacts: Mapping[str, Any]) -> Executable:
    return load(artifacts["affine"])


def tensor(library: ModuleType, name: str, array: np.ndarray, kind: str = "FP32", **options: bool) -> Any:
    """An input of the client."""
    made = library.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array, **options)
    return made


def test_health_and_metadata(client: Any, library: ModuleType) -> None:
    options = {} if library is http_client else {"as_json": True}
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("affine", "1")
    assert client.get_server_metadata(**options)["name"] == "bricolage"
    metadata = client.get_model_metadata("affine", **options)
    assert metadata["versions"] == ["1"] and metadata["platform"] == "bricolage"
    (taken,), (first, second) = metadata["inputs"], metadata["outputs"]
    assert (taken["name"], taken["datatype"], list(map(int, taken["shape"]))) == ("x", "FP32", [-1, 4])
    assert [first["name"], second["name"]] == ["y", "hidden"] and list(map(int, first["shape"])) == [-1, 3]


@pytest.mark.parametrize("rows", [1, 2])
def test_answers_are_those_of_the_executable(client: Any, library: ModuleType, affine: Executable, rows: int) -> None:
    result = client.infer("affine", [tensor(library, "x", ROWS[:rows])], request_id="a b")
    for name, expected in affine.run({"x": ROWS[:rows]}).items():
        np.testing.assert_array_equal(result.as_numpy(name), expected)
    response = result.get_response()
    assert (response["id"] if library is http_client else response.id) == "a b"


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("returned", [True, False])
def test_json_and_binary_on_either_side(served: Served, affine: Executable, sent: bool, returned: bool) -> None:
    with http_client.InferenceServerClient(f"127.0.0.1:{served.http_port}") as client:
        wanted = [http_client.InferRequestedOutput("hidden", binary_data=returned)]
        result = client.infer("affine", [tensor(http_client, "x", ROWS, binary_data=sent)], outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("hidden"), affine.run({"x": ROWS})["hidden"])
    assert result.as_numpy("y") is None, "it was not asked for"
    (output,) = result.get_response()["outputs"]
    assert ("data" in output) is not returned


def test_requested_outputs_come_in_their_order(client: Any, library: ModuleType) -> None:
    wanted = [library.InferRequestedOutput(name) for name in ("hidden", "y")]
    response = client.infer("affine", [tensor(library, "x", ROWS)], outputs=wanted).get_response()
    outputs = response["outputs"] if library is http_client else response.outputs
    assert [output["name"] if library is http_client else output.name for output in outputs] == ["hidden", "y"]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests(client: Any, library: ModuleType, affine: Executable, compression: str) -> None:
    option = "request_compression_algorithm" if library is http_client else "compression_algorithm"
    result = client.infer("affine", [tensor(library, "x", ROWS)], **{option: compression})
    np.testing.assert_array_equal(result.as_numpy("y"), affine.run({"x": ROWS})["y"])


def test_many_at_a_time(served: Served, affine: Executable) -> None:
    """`async_infer`, from several connections, with answers that differ."""
    inputs = [ROWS * (number + 1) for number in range(24)]
    with http_client.InferenceServerClient(f"127.0.0.1:{served.http_port}", concurrency=4) as client:
        requests = [client.async_infer("affine", [tensor(http_client, "x", array)]) for array in inputs]
        answers = [request.get_result().as_numpy("y") for request in requests]
    over_grpc, all_there = dict[int, Any](), threading.Semaphore(0)

    def keep(number: int, result: Any, error: Any) -> None:
        over_grpc[number] = error or result.as_numpy("y")
        all_there.release()

    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.grpc_port}") as client:
        for number, array in enumerate(inputs):
            client.async_infer(
                "affine",
                [tensor(grpc_client, "x", array)],
                lambda result, error, number=number: keep(number, result, error),
            )
        assert all(all_there.acquire(timeout=PATIENCE_S) for _ in inputs)
    for number, array in enumerate(inputs):
        expected = affine.run({"x": array})["y"]
        np.testing.assert_array_equal(answers[number], expected)
        np.testing.assert_array_equal(over_grpc[number], expected)


@pytest.mark.parametrize("binary", [True, False])
def test_every_type(client: Any, library: ModuleType, binary: bool) -> None:
    values = {name: np.array([0, 1], NUMPY.get(name, kind)) for name, kind in TYPES.items() if name != "BF16"}
    values["BF16"] = np.array([0, 1], np.float32)  # the client cuts its second half off
    inputs = []
    for name, array in values.items():
        option = {"binary_data": binary or name in ("FP16", "BF16")} if library is http_client else {}
        inputs.append(tensor(library, name, array, name, **option))
    wanted = None
    if library is http_client:
        wanted = [
            http_client.InferRequestedOutput(f"out_{name}", binary_data=binary or name in ("FP16", "BF16"))
            for name in values
        ]
    result = client.infer("types", inputs, outputs=wanted)
    for name, array in values.items():
        answer = result.as_numpy(f"out_{name}")
        np.testing.assert_array_equal(answer, np.concatenate([array, array]), err_msg=name)
        assert answer.dtype == array.dtype


def test_bfloat16_keeps_every_bit(served: Served) -> None:
    array = np.array([1.0078125, -3.0e38], ml_dtypes.bfloat16)
    others = [
        tensor(http_client, name, np.zeros(2, NUMPY.get(name, kind)), name)
        for name, kind in TYPES.items()
        if name != "BF16"
    ]
    with http_client.InferenceServerClient(f"127.0.0.1:{served.http_port}") as client:
        result = client.infer("types", [*others, tensor(http_client, "BF16", array.astype(np.float32), "BF16")])
    np.testing.assert_array_equal(result.as_numpy("out_BF16")[:2], array.astype(np.float32))


@pytest.mark.parametrize("binary", [True, False])
def test_strings(client: Any, library: ModuleType, binary: bool) -> None:
    option = {"binary_data": binary} if library is http_client else {}
    wanted = [library.InferRequestedOutput("y", **option)]
    array = np.array(["grün ✓", ""], object)
    answer = client.infer("strings", [tensor(library, "x", array, "BYTES", **option)], outputs=wanted).as_numpy("y")
    assert [word.decode() if isinstance(word, bytes) else word for word in answer] == ["grün ✓grün ✓", ""]


def test_numbers_that_json_cannot_spell_travel_in_binary(client: Any, library: ModuleType) -> None:
    array = np.array([-1, 0, np.e], np.float32)
    answer = client.infer("logarithm", [tensor(library, "x", array)]).as_numpy("y")
    assert np.isnan(answer[0]) and np.isneginf(answer[1]) and answer[2] == pytest.approx(1)


@pytest.mark.parametrize(
    ("model", "name", "array", "kind", "status", "text"),
    [
        ("absent", "x", ROWS, "FP32", ("404", "NOT_FOUND"), "there is no model 'absent'. There are: affine"),
        ("affine", "z", ROWS, "FP32", ("400", "INVALID_ARGUMENT"), "no input 'z'"),
        (
            "affine",
            "x",
            ROWS.astype(np.float64),
            "FP64",
            ("400", "INVALID_ARGUMENT"),
            "type FP64; the model takes FP32",
        ),
        ("affine", "x", ROWS[:, :3].copy(), "FP32", ("400", "INVALID_ARGUMENT"), "shape 2×3; the model takes n×4"),
        ("affine", "x", ROWS[0], "FP32", ("400", "INVALID_ARGUMENT"), "shape 4; the model takes n×4"),
        ("rows", "ids", np.array([0, 7]), "INT64", ("400", "INVALID_ARGUMENT"), "7"),
    ],
)
def test_what_does_not_fit_is_refused(
    client: Any, library: ModuleType, model: str, name: str, array: np.ndarray, kind: str, status: Any, text: str
) -> None:
    with pytest.raises(library.InferenceServerException, match=text) as raised:
        client.infer(model, [tensor(library, name, array, kind)])
    assert status[library is grpc_client] in str(raised.value.status() or raised.value)
    with pytest.raises(library.InferenceServerException, match="no output 'z'. It returns: y, hidden"):
        client.infer("affine", [tensor(library, "x", ROWS)], outputs=[library.InferRequestedOutput("z")])
    with pytest.raises(library.InferenceServerException, match="version 2"):
        client.get_model_metadata("affine", "2")
