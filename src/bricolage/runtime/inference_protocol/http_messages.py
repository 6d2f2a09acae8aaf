"""Requests and answers over HTTP: JSON, with tensors in binary behind it where a client wants that."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np
import orjson

from bricolage.errors import BadRequest, BadTensor, RequestTooLarge
from bricolage.runtime.inference_protocol.infer_request import VERSION, InferRequest, ModelSignature, OutputTensor
from bricolage.runtime.inference_protocol.tensor_codec import decode_bytes, decode_values, encode_bytes, encode_values

LENGTH_HEADER = b"inference-header-content-length"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_REFUSED = {
    "sequence_id": "sequences of requests have no meaning here: a model keeps nothing between calls",
    "classification": "classes are not computed: ask for the tensor",
    "shared_memory_region": "shared memory is not offered: send the tensor",
}
"""Parameters that change what the answer is. Others are without effect, as the protocol has it."""


class _Message:
    """An object of JSON, whose fields have types."""

    def __init__(self, fields: object, where: str) -> None:
        if not isinstance(fields, dict):
            raise BadRequest(reason=f"{where} is not an object of JSON")
        self._fields: Mapping[str, object] = fields
        self._where = where

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def value(self, name: str) -> object:
        """A field; None where there is none."""
        return self._fields.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is a string."""
        value = self._fields.get(name, default)
        if not isinstance(value, str):
            raise BadRequest(reason=f"'{name}' of {self._where} is not a string")
        return value

    def items(self, name: str) -> list[object]:
        """A field that is a list; empty where there is none."""
        value = self._fields.get(name) or []
        if not isinstance(value, list):
            raise BadRequest(reason=f"'{name}' of {self._where} is not a list")
        return value

    def sizes(self, name: str) -> list[int]:
        """A field that is a list of whole numbers."""
        value = self._fields.get(name)
        if not _is_sizes(value):
            raise BadRequest(reason=f"'{name}' of {self._where} is not a list of whole numbers")
        return value

    def parameters(self) -> _Message:
        """Its parameters; those that cannot be heeded are refused."""
        parameters = _Message(self._fields.get("parameters") or {}, f"'parameters' of {self._where}")
        for name, reason in _REFUSED.items():
            if parameters.value(name):
                raise BadRequest(reason=reason)
        return parameters

    def flag(self, name: str, default: bool) -> bool:
        """A field that is true or false."""
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise BadRequest(reason=f"'{name}' of {self._where} is neither true nor false")
        return value


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in value)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body that a client sent compressed by `encoding` ("": not at all).

    Raises:
        BadRequest: it is compressed in another way, or damaged.
        RequestTooLarge: it has more than `limit` bytes.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW_BITS:
        raise BadRequest(reason=f"its Content-Encoding is {encoding}; gzip, deflate and identity can be read")
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        whole = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(reason=f"its body is not {encoding} ({error})") from None
    if len(whole) > limit:
        raise RequestTooLarge(limit=f"{limit:,} bytes")
    if not stream.eof:
        raise BadRequest(reason=f"its body ends within {encoding}")
    return whole


def decode_request(body: bytes, json_length: str | None, signature: ModelSignature) -> InferRequest:
    """A request from its body.

    Args:
        body: JSON, and tensors behind it.
        json_length: bytes of the JSON, as a header says; None where there is nothing else.
        signature: of the model.

    Raises:
        BadRequest, BadTensor: it cannot be read.
        UnknownInput, MissingInput, WrongType, UnknownOutput: it does not fit the model.
    """
    length = len(body) if json_length is None else _parse_length(json_length, len(body))
    message = _Message(_parse_json(body[:length]), "the request")
    tail = _Tail(memoryview(body)[length:])
    arrays: dict[str, np.ndarray] = {}
    for sent in message.items("inputs"):
        tensor = _Message(sent, "an input")
        name = tensor.text("name")
        if name in arrays:
            raise BadRequest(reason=f"input '{name}' is given twice")
        arrays[name] = _decode_input(name, tensor, tail, signature)
    tail.check_end()
    signature.check_inputs(arrays)
    return InferRequest(message.text("id", ""), arrays, _decode_outputs(message, signature))


def _parse_length(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise BadRequest(reason=f"its header {LENGTH_HEADER.decode()} is not a length within its {most} bytes")
    return int(text)


def _parse_json(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(reason=f"it is not JSON ({error})") from None


class _Tail:
    """What stands behind the JSON: tensors, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, name: str, size: object) -> memoryview:
        """The next `size` bytes, of a tensor."""
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(self._data):
            raise BadTensor(name=name, reason=f"binary_data_size is {size}, and {len(self._data)} bytes follow")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def check_end(self) -> None:
        """Nothing may be left."""
        if len(self._data):
            raise BadRequest(reason=f"{len(self._data)} bytes behind its JSON belong to no input")


def _decode_input(name: str, tensor: _Message, tail: _Tail, signature: ModelSignature) -> np.ndarray:
    datatype = signature.input(name, tensor.text("datatype"))
    shape, parameters = tensor.sizes("shape"), tensor.parameters()
    if "binary_data_size" not in parameters:
        return decode_values(name, datatype, shape, tensor.value("data"))
    if "data" in tensor:
        raise BadTensor(name=name, reason="it has 'data' and 'binary_data_size'")
    return decode_bytes(name, datatype, shape, tail.take(name, parameters.value("binary_data_size")))


def _decode_outputs(message: _Message, signature: ModelSignature) -> dict[str, bool]:
    binary = message.parameters().flag("binary_data_output", False)
    wanted = [_Message(sent, "an output") for sent in message.items("outputs")]
    names = [output.text("name") for output in wanted]
    signature.check_outputs(names)
    if not wanted:
        return {spec.name: binary for spec in signature.outputs}
    return {name: output.parameters().flag("binary_data", binary) for name, output in zip(names, wanted, strict=True)}


def encode_response(model: str, request_id: str, outputs: Sequence[OutputTensor]) -> tuple[bytes, int | None]:
    """The body of an answer, and how long its JSON is where tensors follow in binary.

    Raises:
        NotInJson: an output is asked for as JSON, which has no spelling for it.
    """
    tensors: list[dict[str, object]] = []
    parts: list[bytes | memoryview] = []
    for output in outputs:
        tensor: dict[str, object] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.array.shape),
        }
        if output.binary:
            parts.append(encode_bytes(output.array, output.datatype))
            tensor["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            tensor["data"] = encode_values(output.name, output.array, output.datatype)
        tensors.append(tensor)
    answer: dict[str, object] = {"model_name": model, "model_version": VERSION, "outputs": tensors}
    if request_id:
        answer["id"] = request_id
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((head, *parts)), len(head)) if parts else (head, None)
