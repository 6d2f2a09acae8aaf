"""Outputs that are maps: what scikit-learn's converters write behind a classifier (`ai.onnx.ml.ZipMap`).

No graph computes with maps: a ZipMap at the end of a model names the columns of a tensor. So the model returns that tensor, and the
executable makes the maps of it (`runtime.signature.mapped`). The names stand in the model's metadata until the plan has them.
"""

from __future__ import annotations

import json

import onnx

KEYS = "bricolage.keys"
"""Metadata of a model: by output, the keys of the maps that its rows become, as JSON."""
_ZIP = ("ai.onnx.ml", "ZipMap")


def without_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with tensors in the place of outputs that a ZipMap makes; itself where there are none. Not changed."""
    read = {name for node in proto.graph.node for name in node.input}
    outputs = {info.name for info in proto.graph.output}
    last = [
        node
        for node in proto.graph.node
        if (node.domain, node.op_type) == _ZIP and node.output[0] in outputs and node.output[0] not in read
    ]
    if not last:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    keys: dict[str, list[int | str]] = {}
    for node in copy.graph.node:
        if (node.domain, node.op_type) == _ZIP and node.output[0] in outputs and node.output[0] not in read:
            (named,) = (onnx.helper.get_attribute_value(attribute) for attribute in node.attribute)
            keys[node.output[0]] = [one.decode() if isinstance(one, bytes) else int(one) for one in named]
            node.domain, node.op_type = "", "Identity"
            node.ClearField("attribute")
    for info in copy.graph.output:
        if info.name in keys:
            info.type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
    onnx.helper.set_model_props(copy, {**{p.key: p.value for p in copy.metadata_props}, KEYS: json.dumps(keys)})
    return copy
