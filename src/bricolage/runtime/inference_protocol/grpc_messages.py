"""The protocol's messages of gRPC, from a table of their fields: no code that a version of protobuf has to like is generated."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
_FIELDS: Mapping[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "1 live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "1 ready bool",
    "ModelReadyRequest": "1 name string, 2 version string",
    "ModelReadyResponse": "1 ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "1 name string, 2 version string, 3 extensions string*",
    "ModelMetadataRequest": "1 name string, 2 version string",
    "ModelMetadataResponse": "1 name string, 2 versions string*, 3 platform string, "
    "4 inputs .ModelMetadataResponse.TensorMetadata*, 5 outputs .ModelMetadataResponse.TensorMetadata*",
    "ModelMetadataResponse.TensorMetadata": "1 name string, 2 datatype string, 3 shape int64*",
    "InferParameter": "1 bool_param bool|, 2 int64_param int64|, 3 string_param string|",
    "InferTensorContents": "1 bool_contents bool*, 2 int_contents int32*, 3 int64_contents int64*, "
    "4 uint_contents uint32*, 5 uint64_contents uint64*, 6 fp32_contents float*, 7 fp64_contents double*, "
    "8 bytes_contents bytes*",
    "ModelInferRequest": "1 model_name string, 2 model_version string, 3 id string, "
    "4 parameters .InferParameter%, 5 inputs .ModelInferRequest.InferInputTensor*, "
    "6 outputs .ModelInferRequest.InferRequestedOutputTensor*, 7 raw_input_contents bytes*",
    "ModelInferRequest.InferInputTensor": "1 name string, 2 datatype string, 3 shape int64*, "
    "4 parameters .InferParameter%, 5 contents .InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "1 name string, 2 parameters .InferParameter%",
    "ModelInferResponse": "1 model_name string, 2 model_version string, 3 id string, "
    "4 parameters .InferParameter%, 5 outputs .ModelInferResponse.InferOutputTensor*, 6 raw_output_contents bytes*",
    "ModelInferResponse.InferOutputTensor": "1 name string, 2 datatype string, 3 shape int64*, "
    "4 parameters .InferParameter%, 5 contents .InferTensorContents",
}
"""By message: number, name and type of each field. `*`: repeated; `|`: the only one of those with this mark that is set; `%`: a map
from strings. A message inside another one comes after it."""


def _describe_messages() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="bricolage/inference.proto", package=PACKAGE, syntax="proto3")
    described: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, fields in _FIELDS.items():
        outer, _, name = path.rpartition(".")
        message = described[outer].nested_type.add() if outer else file.message_type.add()
        message.name = name
        described[path] = message
        for text in filter(None, fields.split(", ")):
            _add_field(message, path, text)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, path: str, text: str) -> None:
    number, name, kind = text.split(" ")
    proto = descriptor_pb2.FieldDescriptorProto
    mark = kind[-1] if kind[-1] in "*|%" else ""
    field = message.field.add(name=name, number=int(number))
    field.label = proto.LABEL_REPEATED if mark in ("*", "%") else proto.LABEL_OPTIONAL
    field.json_name = name
    if mark == "%":
        entry = message.nested_type.add(name="".join(map(str.capitalize, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "1 key string")
        _add_field(entry, "", f"2 value {kind[:-1]}")
        field.type, field.type_name = proto.TYPE_MESSAGE, f".{PACKAGE}.{path}.{entry.name}"
        return
    if mark == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    kind = kind.rstrip("*|")
    if kind.startswith("."):
        field.type, field.type_name = proto.TYPE_MESSAGE, f".{PACKAGE}{kind}"
    else:
        field.type = getattr(proto, f"TYPE_{kind.upper()}")


def _make_classes() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()  # of its own: another library may describe the same package
    pool.Add(_describe_messages())
    find = pool.FindMessageTypeByName
    return {path: message_factory.GetMessageClass(find(f"{PACKAGE}.{path}")) for path in _FIELDS if "." not in path}


MESSAGES: Mapping[str, type[Message]] = _make_classes()
"""Classes of the messages by name."""
