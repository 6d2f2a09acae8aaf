"""Requests that cannot be answered: a status of 4xx with the reason, and the next request is answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.tools.server_process import PATIENCE_S, Served
from tests.needed import needs
from tests.runtime.inference_protocol.conftest import LIBRARIES

for library_name in LIBRARIES:
    needs(library_name)

INFER = "/v2/models/affine/infer"
ROW = np.array([[1, 2, 3, 4]], np.float32)
GOOD: Mapping[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


def request(*inputs: Mapping[str, Any], **fields: Any) -> str:
    return json.dumps({"inputs": list(inputs), **fields})


def changed(**fields: Any) -> str:
    """A good input, but for some fields; a field that is None is left out."""
    return request({name: value for name, value in {**GOOD, **fields}.items() if value is not None})


def in_binary(size: object, data: bytes, **fields: Any) -> tuple[bytes, int]:
    """A body with an input in binary, and the length of its JSON."""
    head = changed(data=None, parameters={"binary_data_size": size}, **fields).encode()
    return head + data, len(head)


BAD_JSON = {
    "nothing": ("", "not JSON"),
    "no JSON": ("{", "not JSON"),
    "NaN": (request(GOOD).replace("4]", "NaN]"), "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "a list": ("[]", "not an object"),
    "no inputs": (request(), "input 'x' is missing"),
    "inputs no list": ('{"inputs": 3}', "'inputs' of the request is not a list"),
    "an input is no object": ('{"inputs": [3]}', "an input is not an object"),
    "id is a number": (request(GOOD, id=3), "'id' of the request is not a string"),
    "no name": (changed(name=None), "'name' of an input is not a string"),
    "unknown name": (changed(name="z"), "no input 'z'"),
    "twice": (request(GOOD, GOOD), "given twice"),
    "another one too": (request(GOOD, {**GOOD, "name": "more"}), "no input 'more'"),
    "no type": (changed(datatype=None), "'datatype' of an input is not a string"),
    "unknown type": (changed(datatype="FP31"), "type FP31; the model takes FP32"),
    "other type": (changed(datatype="INT32"), "type INT32; the model takes FP32"),
    "no shape": (changed(shape=None), "'shape' of an input is not a list of whole numbers"),
    "shape of words": (changed(shape=["1", "4"]), "'shape' of an input is not a list of whole numbers"),
    "shape of truth": (changed(shape=[True, 4]), "'shape' of an input is not a list of whole numbers"),
    "shape of halves": (changed(shape=[1.0, 4]), "'shape' of an input is not a list of whole numbers"),
    "negative shape": (changed(shape=[-1, 4]), "cannot have the shape"),
    "two negative sizes": (changed(shape=[-1, -4]), "cannot have the shape"),
    "huge shape": (changed(shape=[1 << 60, 4]), "elements, and 4 were sent"),
    "huge and empty": (changed(shape=[0, 1 << 62, 1 << 62], data=[]), "cannot have the shape"),
    "many dimensions": (changed(shape=[1] * 99 + [4]), "cannot have the shape"),
    "other size": (changed(shape=[2, 4]), "8 elements, and 4 were sent"),
    "other rank": (changed(shape=[4]), "shape 4; the model takes n×4"),
    "other columns": (changed(shape=[4, 1]), "shape 4×1; the model takes n×4"),
    "no data": (changed(data=None), "'data' is not a list"),
    "data is a number": (changed(data=3), "'data' is not a list"),
    "null": (changed(data=[1, 2, 3, None]), "not FP32"),
    "words": (changed(data=["1", "2", "3", "4"]), "not FP32"),
    "truth values": (changed(data=[True] * 4), "not FP32"),
    "ragged": (changed(data=[[1, 2], [3]]), "differ in length"),
    "too large a number": (changed(data=[1, 2, 3, 1e39]), "does not fit into FP32"),
    "shared memory": (
        changed(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 16}),
        "shared memory is not offered",
    ),
    "a sequence": (request(GOOD, parameters={"sequence_id": 3}), "sequences of requests"),
    "parameters no object": (request(GOOD, parameters=[3]), "is not an object"),
    "binary_data_output no truth": (request(GOOD, parameters={"binary_data_output": "yes"}), "neither true nor false"),
    "outputs no list": (request(GOOD, outputs={"name": "y"}), "'outputs' of the request is not a list"),
    "unknown output": (request(GOOD, outputs=[{"name": "z"}]), "no output 'z'. It returns: y, hidden"),
    "output twice": (request(GOOD, outputs=[{"name": "y"}, {"name": "y"}]), "asked for twice"),
    "classes": (request(GOOD, outputs=[{"name": "y", "parameters": {"classification": 2}}]), "classes"),
    "unsized binary": (changed(data=None, parameters={"binary_data_size": 16}), "0 bytes follow"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_json(served: Served, case: str) -> None:
    body, reason = BAD_JSON[case]
    status, answer, headers = served.exchange("POST", INFER, body.encode())
    assert status == 400 and headers["content-type"] == "application/json"
    assert reason in json.loads(answer)["error"]


BAD_BINARY = {
    "short": (in_binary(16, ROW.tobytes()[:-1]), {}, "15 bytes follow"),
    "long": (in_binary(16, ROW.tobytes() + b"1"), {}, "1 bytes behind its JSON"),
    "other size": (in_binary(12, ROW.tobytes()[:12]), {}, "has 16 bytes, and 12 were sent"),
    "negative": (in_binary(-16, ROW.tobytes()), {}, "binary_data_size is -16"),
    "no number": (in_binary("16", ROW.tobytes()), {}, "binary_data_size is 16"),
    "data as well": ((changed(parameters={"binary_data_size": 0}).encode(), 0), {}, "has 'data' and"),
    "length beyond": ((changed().encode(), 0), {"Inference-Header-Content-Length": "9999"}, "is not a length"),
    "length no number": ((changed().encode(), 0), {"Inference-Header-Content-Length": "-1"}, "is not a length"),
    "JSON cut": ((changed().encode(), 5), {}, "not JSON"),
    "no gzip": ((changed().encode(), 0), {"Content-Encoding": "gzip"}, "is not gzip"),
    "unknown encoding": ((changed().encode(), 0), {"Content-Encoding": "br"}, "Content-Encoding is br"),
}


@pytest.mark.parametrize("case", BAD_BINARY)
def test_binary(served: Served, case: str) -> None:
    (body, length), headers, reason = BAD_BINARY[case]
    stated = {"Inference-Header-Content-Length": str(length)} if length else {}
    status, answer, _ = served.exchange("POST", INFER, body, {**stated, **headers})
    assert status == 400
    assert reason in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", INFER, 404),
        ("POST", "/v2", 404),
        ("GET", "/v2/models/absent", 404),
        ("GET", "/v2/models/absent/ready", 404),
        ("POST", "/v2/models/absent/infer", 404),
        ("POST", "/v2/models/affine/versions/2/infer", 404),
        ("GET", "/v2/models/affine/versions/1/ready", 200),
        ("GET", "/v2/models/%00%1b%5b31m/ready", 404),
        ("DELETE", "/v2/models/affine", 404),
    ],
)
def test_paths(served: Served, method: str, path: str, status: int) -> None:
    found, answer, _ = served.exchange(method, path)
    assert found == status and ("error" in json.loads(answer)) == (status != 200)


def test_what_json_has_no_number_for_is_said(served: Served) -> None:
    body = request({"name": "x", "shape": [3], "datatype": "FP32", "data": [-1, 0, 1]}).encode()
    status, answer, _ = served.exchange("POST", "/v2/models/logarithm/infer", body)
    assert status == 400 and "NaN or infinity" in json.loads(answer)["error"]


@pytest.mark.parametrize("length", ["stated", "chunked", "compressed"])
def test_requests_beyond_the_limit(served: Served, length: str) -> None:
    body, headers = b"1" * 2_000_000, dict[str, str]()
    if length == "compressed":
        import gzip

        body, headers = gzip.compress(body), {"Content-Encoding": "gzip"}
    sent: Any = iter([body[:1_500_000], body[1_500_000:]]) if length == "chunked" else body
    status, answer, _ = served.exchange("POST", INFER, sent, headers)
    assert status == 413 and "longer than 1,000,000 bytes" in json.loads(answer)["error"]


def test_the_server_is_as_it_was(served: Served) -> None:
    """After requests of all kinds, and bytes that are no HTTP."""
    for data in (b"\0" * 100, b"POST " + INFER.encode() + b" HTTP/1.1\r\ncontent-length: 100\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", served.http_port), PATIENCE_S) as connection:
            connection.sendall(data)
    status, answer, _ = served.exchange("POST", INFER, changed().encode())
    outputs = {output["name"]: output["data"] for output in json.loads(answer)["outputs"]}
    assert status == 200 and outputs["hidden"] == [1, 2, 3, 4]
    assert served.process.poll() is None
    before = served.metric('bricolage_requests_total{model="affine",protocol="http",status="400"}')
    served.exchange("POST", INFER)
    assert served.metric('bricolage_requests_total{model="affine",protocol="http",status="400"}') == before + 1
    assert served.metric('bricolage_requests_total{model="affine",protocol="http",status="500"}') == 0
    assert served.metric('bricolage_runs_total{model="affine"}') >= 1


GRPC_INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
BAD_MESSAGES: Mapping[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({}, "'x' is missing"),
    "no contents": ({"inputs": [GRPC_INPUT]}, "does not have 0 elements"),
    "other contents": (
        {"inputs": [{**GRPC_INPUT, "contents": {"int_contents": [1, 2, 3, 4]}}]},
        "stands in fp32_contents",
    ),
    "too few": ({"inputs": [{**GRPC_INPUT, "contents": {"fp32_contents": [1]}}]}, "does not have 1 elements"),
    "raw and contents": (
        {"inputs": [{**GRPC_INPUT, "contents": {"fp32_contents": [1]}}], "raw_input_contents": [ROW.tobytes()]},
        "there are raw contents",
    ),
    "more raw than inputs": ({"inputs": [GRPC_INPUT], "raw_input_contents": [ROW.tobytes()] * 2}, "2 raw contents"),
    "short": ({"inputs": [GRPC_INPUT], "raw_input_contents": [b"1"]}, "has 16 bytes, and 1 were sent"),
    "negative": ({"inputs": [{**GRPC_INPUT, "shape": [-1, 4]}], "raw_input_contents": [b""]}, "cannot have the shape"),
    "twice": ({"inputs": [GRPC_INPUT] * 2, "raw_input_contents": [ROW.tobytes()] * 2}, "given twice"),
}


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_messages(served: Served, case: str) -> None:
    import grpc

    from bricolage.runtime.inference_protocol.grpc_messages import MESSAGES, SERVICE

    fields, reason = BAD_MESSAGES[case]
    message = MESSAGES["ModelInferRequest"](model_name="affine", **fields)
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError, match=reason) as raised:
            infer(message.SerializeToString(), timeout=PATIENCE_S)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError, match="no ModelInferRequest"):
            infer(b"\xff" * 9, timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError, match="larger than max") as raised:
            infer(b"\0" * 2_000_000, timeout=PATIENCE_S)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        message = MESSAGES["ModelInferRequest"](
            model_name="affine", inputs=[{**GRPC_INPUT, "contents": {"fp32_contents": [1, 2, 3, 4]}}]
        )
        answer = MESSAGES["ModelInferResponse"].FromString(infer(message.SerializeToString(), timeout=PATIENCE_S))
        assert list(answer.outputs[1].contents.fp32_contents) == [1, 2, 3, 4]
