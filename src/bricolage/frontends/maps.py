"""Inputs and outputs that are maps: what scikit-learn's converters write behind a classifier (`ai.onnx.ml.ZipMap`), and before
features that have names (DictVectorizer, CastMap).

No graph computes with maps: a ZipMap at the end of a model names the columns of a tensor. So the model returns that tensor, and the
executable makes the maps of it (`runtime.signature.mapped`). An input that a DictVectorizer or a CastMap to numbers reads is the
tensor that they make of it, and the executable makes it of a map (`runtime.signature.row`). The names stand in the model's metadata
until the plan has them; a dense CastMap has none, and as many columns as the map has keys. Functions of the model that have such
operators are written out first. A model that is written for other runtimes has its maps again (`restore`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from bricolage.errors import InvalidGraph

KEYS = "bricolage.keys"
"""Metadata of a model: by input or output, the keys of its maps, one for each column of the tensor in its place, as JSON."""
_ML = "ai.onnx.ml"
_ZIP = (_ML, "ZipMap")
_OF_MAPS = frozenset(["CastMap", "DictVectorizer", "ZipMap"])
_CASTS = {"TO_FLOAT": onnx.TensorProto.FLOAT, "TO_INT64": onnx.TensorProto.INT64}
_NUMBERS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64)
_MOST = 1 << 20
"""Columns of a map beyond which it is refused."""
Keys = list[int | str]


def without_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with tensors in the place of inputs and outputs that are maps; itself where there are none. Not changed.

    Raises:
        InvalidGraph: an operator of maps is in a function that cannot be written out.
    """
    proto = _without_functions(proto)
    read = {name for node in proto.graph.node for name in node.input}
    zips = [node for node in proto.graph.node if (node.domain, node.op_type) == _ZIP and node.output[0] not in read]
    entered = _find_map_inputs(proto.graph)
    if not zips and not entered:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    keys = {**entered, **_without_zips(copy.graph, {node.output[0] for node in zips})}
    for info in copy.graph.input:
        if info.name in entered:
            kind, size = info.type.map_type.value_type.tensor_type.elem_type, len(entered[info.name]) or None
            info.type.CopyFrom(onnx.helper.make_tensor_type_proto(kind, [1, size]))
    for node in copy.graph.node:
        if node.domain == _ML and node.input and node.input[0] in entered:
            target = None if node.op_type == "DictVectorizer" else _CASTS[_attributes(node).get("cast_to", "TO_FLOAT")]
            node.domain, node.op_type = "", "Identity" if target is None else "Cast"
            node.ClearField("attribute")
            if target is not None:
                node.attribute.append(onnx.helper.make_attribute("to", target))
    onnx.helper.set_model_props(copy, {**{p.key: p.value for p in copy.metadata_props}, KEYS: json.dumps(keys)})
    return copy


def restore(path: Path) -> None:
    """Gives the model of a file, which was made of one with maps, its maps back: a ZipMap behind each such output, and before each
    such input an operator that makes the row of a map. Weights in files of their own stay where they are."""
    proto = onnx.load(str(path), load_external_data=False)
    props = {entry.key: entry.value for entry in proto.metadata_props}
    keys: dict[str, Keys] = json.loads(props.pop(KEYS, "{}"))
    if not keys:
        return
    graph = proto.graph
    outputs = {info.name: info for info in graph.output if info.name in keys}
    inputs = {info.name: info for info in graph.input if info.name in keys}
    inner_names = {name: f"{name}.columns" for name in outputs} | {name: f"{name}.row" for name in inputs}
    _rename(graph, inner_names)
    for name, info in outputs.items():
        key, named = _find_key_type(keys[name])
        node = onnx.helper.make_node(
            "ZipMap", [inner_names[name]], [name], domain=_ML, **{f"classlabels_{named}s": keys[name]}
        )
        graph.node.append(node)
        kind = onnx.helper.make_map_type_proto(key, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
        info.type.CopyFrom(onnx.helper.make_sequence_type_proto(kind))
    for name, info in inputs.items():
        key, named = _find_key_type(keys[name])
        number = info.type.tensor_type.elem_type
        vocabulary = {f"{named}_vocabulary": keys[name]}
        op_type, attributes = ("DictVectorizer", vocabulary) if keys[name] else ("CastMap", {"map_form": "DENSE"})
        graph.node.insert(0, onnx.helper.make_node(op_type, [name], [inner_names[name]], domain=_ML, **attributes))
        info.type.CopyFrom(onnx.helper.make_map_type_proto(key, onnx.helper.make_tensor_type_proto(number, [])))
    if not any(entry.domain == _ML for entry in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(_ML, 1))
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, props)
    path.write_bytes(proto.SerializeToString())


def _find_key_type(keys: Keys) -> tuple[int, str]:
    """The type of keys, and what attributes with them are called."""
    text = bool(keys) and isinstance(keys[0], str)
    return (onnx.TensorProto.STRING, "string") if text else (onnx.TensorProto.INT64, "int64")


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Gives values other names wherever operators read or make them, in place; inputs and outputs of the graph keep theirs."""
    for node in graph.node:
        for ends in (node.input, node.output):
            ends[:] = [names.get(name, name) for name in ends]
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _rename(body, names)
    for info in graph.value_info:
        info.name = names.get(info.name, info.name)


def _without_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions written out where one has an operator of maps; itself otherwise."""
    inside = (node for function in proto.functions for node in function.node)
    if not any(node.domain == _ML and node.op_type in _OF_MAPS for node in inside):
        return proto
    try:
        return onnx.inliner.inline_local_functions(proto, convert_version=True)
    except Exception as error:  # it has no common exception
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise InvalidGraph(reason=f"its functions cannot be inlined: {reason}") from error


def _without_zips(graph: onnx.GraphProto, zipped: set[str]) -> dict[str, Keys]:
    """Has a graph return the tensors that these outputs of ZipMaps are made of, in place; their keys. What nothing reads goes."""
    keys: dict[str, Keys] = {}
    outputs = {info.name for info in graph.output}
    for node in list(graph.node):
        if (node.domain, node.op_type) != _ZIP or node.output[0] not in zipped:
            continue
        if node.output[0] not in outputs:
            graph.node.remove(node)
            continue
        (named,) = (onnx.helper.get_attribute_value(attribute) for attribute in node.attribute)
        keys[node.output[0]] = _decode_keys(named)
        node.domain, node.op_type = "", "Identity"
        node.ClearField("attribute")
    for info in graph.output:
        if info.name in keys:
            info.type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
    return keys


def _find_map_inputs(graph: onnx.GraphProto) -> dict[str, Keys]:
    """Keys of inputs that are maps to numbers, all of whose readers make the same columns of them; none where only the map says
    how many there are."""
    map_keys: dict[str, Keys] = {}
    outputs = {info.name for info in graph.output}
    for info in graph.input:
        kind = info.type.map_type.value_type.tensor_type.elem_type if info.type.HasField("map_type") else 0
        readers = [node for node in graph.node if info.name in node.input]
        keys = [_columns(node) for node in readers]
        first = keys[0] if keys else None
        if kind in _NUMBERS and first is not None and keys.count(first) == len(keys) and info.name not in outputs:
            map_keys[info.name] = first
    return map_keys


def _columns(node: onnx.NodeProto) -> Keys | None:
    """Keys of the columns that an operator makes of a map; none where the map says how many there are, and None for any other
    operator, and for one that makes text."""
    given = _attributes(node)
    if node.domain == _ML and node.op_type == "DictVectorizer":
        return _decode_keys(given.get("string_vocabulary") or given.get("int64_vocabulary") or ()) or None
    if node.domain == _ML and node.op_type == "CastMap" and given.get("cast_to", "TO_FLOAT") in _CASTS:
        if given.get("map_form", "DENSE") != "SPARSE":
            return []
        size = given.get("max_map", 1)
        return list(range(size)) if 0 < size <= _MOST else None
    return None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = ((attribute.name, onnx.helper.get_attribute_value(attribute)) for attribute in node.attribute)
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values}


def _decode_keys(named: Sequence[bytes | int]) -> Keys:
    return [key.decode() if isinstance(key, bytes) else int(key) for key in named]
