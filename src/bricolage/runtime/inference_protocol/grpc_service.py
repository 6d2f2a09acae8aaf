"""The protocol over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from bricolage.errors import BadRequest, BadTensor, ServerDraining
from bricolage.runtime.inference_protocol.datatypes import BINARY_ONLY, BYTES
from bricolage.runtime.inference_protocol.grpc_messages import MESSAGES, SERVICE
from bricolage.runtime.inference_protocol.infer_request import VERSION, InferRequest, ModelSignature, OutputTensor
from bricolage.runtime.inference_protocol.model_metrics import ModelMetrics
from bricolage.runtime.inference_protocol.refusals import GRPC_CODES, OK, error_text, status_of, wait_for_outcome
from bricolage.runtime.inference_protocol.served_model import ServedModels, server_metadata
from bricolage.runtime.inference_protocol.tensor_codec import (
    count_elements,
    decode_bytes,
    decode_string,
    decode_values,
    encode_bytes,
)

Context: TypeAlias = grpc.aio.ServicerContext
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""By type: the field of a tensor's elements, where they are not sent raw."""


def decode_message(message: Message, signature: ModelSignature) -> InferRequest:
    """A request from its message. Outputs are in binary where the inputs are, or have no other form.

    Raises:
        BadRequest, BadTensor: it cannot be read.
        UnknownInput, MissingInput, WrongType, UnknownOutput: it does not fit the model.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise BadRequest(reason=f"it has {len(message.inputs)} inputs and {len(raw)} raw contents")
    arrays: dict[str, np.ndarray] = {}
    for number, tensor in enumerate(message.inputs):
        if tensor.name in arrays:
            raise BadRequest(reason=f"input '{tensor.name}' is given twice")
        datatype = signature.input(tensor.name, tensor.datatype)
        if raw and tensor.HasField("contents"):
            raise BadTensor(name=tensor.name, reason="it has contents, and there are raw contents")
        if raw:
            arrays[tensor.name] = decode_bytes(tensor.name, datatype, tensor.shape, raw[number])
        else:
            arrays[tensor.name] = _decode_contents(tensor, datatype)
    signature.check_inputs(arrays)
    names = [output.name for output in message.outputs]
    signature.check_outputs(names)
    binary = bool(raw)
    return InferRequest(message.id, arrays, dict.fromkeys(names or [spec.name for spec in signature.outputs], binary))


def _decode_contents(tensor: Message, datatype: str) -> np.ndarray:
    name, shape = tensor.name, list(tensor.shape)
    if datatype in BINARY_ONLY:
        raise BadTensor(name=name, reason=f"{datatype} is sent as raw contents only")
    used = [field.name for field, _ in tensor.contents.ListFields()]
    field_name = _CONTENTS[datatype]
    if used not in ([], [field_name]):
        raise BadTensor(name=name, reason=f"{datatype} stands in {field_name}, and not in {', '.join(used)}")
    values = getattr(tensor.contents, field_name)
    if datatype == BYTES:
        return decode_values(name, datatype, shape, [decode_string(name, value) for value in values])
    if datatype in ("FP32", "FP64"):  # these may be infinite or NaN, unlike those of JSON
        array = np.array(values, np.float32 if datatype == "FP32" else np.float64)
        if array.size != count_elements(name, shape):
            raise BadTensor(name=name, reason=f"shape {shape} does not have {array.size} elements")
        return decode_bytes(name, datatype, shape, array.tobytes())
    return decode_values(name, datatype, shape, list(values))


def encode_message(model: str, request_id: str, outputs: Sequence[OutputTensor]) -> Message:
    """The answer. All of its tensors are raw if one of them has no other form."""
    raw = any(output.binary or output.datatype in BINARY_ONLY for output in outputs)
    message = MESSAGES["ModelInferResponse"](model_name=model, model_version=VERSION, id=request_id)
    for output in outputs:
        tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.array.shape)
        if raw:
            message.raw_output_contents.append(bytes(encode_bytes(output.array, output.datatype)))
        elif output.datatype == BYTES:
            tensor.contents.bytes_contents.extend(str(element).encode("utf-8") for element in output.array.flat)
        else:
            getattr(tensor.contents, _CONTENTS[output.datatype]).extend(output.array.reshape(-1).tolist())
    return message


class GrpcService:
    """The methods of the service. Others are unimplemented, as gRPC has it."""

    def __init__(self, models: ServedModels, metrics: ModelMetrics, time_limit_s: float) -> None:
        self._models, self._metrics, self._time_limit_s = models, metrics, time_limit_s

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server of gRPC takes. Messages come as bytes: one that is none gets a status of ours."""
        methods: Mapping[str, Callable[[Message], Awaitable[Message]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answering(name, method), response_serializer=lambda message: message.SerializeToString()
            )
            for name, method in methods.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _answering(
        self, name: str, method: Callable[[Message], Awaitable[Message]]
    ) -> Callable[[bytes, Context], Awaitable[Message]]:
        """A method, with its errors as statuses."""

        async def answer(data: bytes, context: Context) -> Message:
            begun_s = time.perf_counter()
            message = _parse_message(name, data)
            answering = asyncio.ensure_future(_refuse(name) if message is None else method(message))
            error = await wait_for_outcome(answering)
            status = OK if error is None else status_of(error)
            if name == "ModelInfer":
                model = message.model_name if message is not None and message.model_name in self._models else ""
                self._metrics.record(model, "grpc", status, time.perf_counter() - begun_s)
            if error is not None:
                await context.abort(grpc.StatusCode[GRPC_CODES[status]], error_text(error))
            return answering.result()

        return answer

    async def _server_live(self, message: Message) -> Message:
        del message
        return MESSAGES["ServerLiveResponse"](live=True)

    async def _server_ready(self, message: Message) -> Message:
        del message
        return MESSAGES["ServerReadyResponse"](ready=self._models.ready)

    async def _model_ready(self, message: Message) -> Message:
        ready = self._models.find(message.name, message.version).ready and not self._models.draining
        return MESSAGES["ModelReadyResponse"](ready=ready)

    async def _server_metadata(self, message: Message) -> Message:
        del message
        return MESSAGES["ServerMetadataResponse"](**server_metadata())

    async def _model_metadata(self, message: Message) -> Message:
        return MESSAGES["ModelMetadataResponse"](**self._models.find(message.name, message.version).metadata())

    async def _model_infer(self, message: Message) -> Message:
        model = self._models.find(message.model_name, message.model_version)
        if self._models.draining:
            raise ServerDraining
        request = decode_message(message, model.signature)
        outputs = await model.infer(request, self._time_limit_s)
        return encode_message(model.name, request.id, outputs)


def _parse_message(name: str, data: bytes) -> Message | None:
    """A request to a method; None where it is none."""
    try:
        return MESSAGES[f"{name}Request"].FromString(data)
    except DecodeError:
        return None


async def _refuse(name: str) -> Message:
    raise BadRequest(reason=f"it is no {name}Request")
