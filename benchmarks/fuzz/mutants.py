"""Mutants of exported networks: windows of consecutive operators with other sizes, attributes, operators and opsets."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import onnx
import onnx_ir as ir
from onnx import helper

from benchmarks.fuzz.sources import NoSample, Sample
from benchmarks.fuzz.sources import sample as drawn
from benchmarks.rewrites.exports import at_sizes
from benchmarks.workloads import export, workloads
from bricolage.errors import BricolageError, InvalidGraph
from bricolage.frontends import to_model
from bricolage.frontends.clean import raise_opset
from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region
from bricolage.testing import contexts

NETWORKS = (
    "light-squeezenet", "light-densenet121", "light-inception-v2", "light-shufflenet", "light-resnet50", "light-alexnet",
    "mobilenet-v2", "collage-bert", "minilm-l6", "rotary-decoder", "nasrnn", "dcgan", "collage-nasnet", "inception-v3",
)  # fmt: skip
_TURN = 64
"""Seeds in a row that are windows of one network, which is loaded once."""
_WINDOW = (1, 14)
_ATTEMPTS = 12
_WEIGHTS = 3 << 20
"""Bytes of constants of a window."""
_ELEMENTS = 1 << 18
_SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17)
_UNARY = ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu", "Softplus", "Erf", "Neg", "Abs")
_ALIKE = (
    _UNARY,
    ("Add", "Sub", "Mul", "Max", "Min"),
    ("MaxPool", "AveragePool"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"),
    ("GlobalAveragePool", "GlobalMaxPool"),
)
_OPSETS = (18, 19, 20, 21, 22, 23, 24)


def sample(seed: int) -> Sample:
    """A window of a network in turn, changed in one to four places, valid by ONNX's checker with strict shape inference.

    Raises:
        NoSample: no valid mutant was found in a few attempts.
        NoReference: under no inputs is the answer finite.
    """
    chance = random.Random(seed)
    name = NETWORKS[seed // _TURN % len(NETWORKS)]
    reason = "windows with few weights"
    for _ in range(_ATTEMPTS):
        window = _window(_network(name), chance)
        if window is None:
            continue
        try:
            for change in chance.choices(list(_CHANGES), k=chance.randint(1, 4)):
                change(window, chance)
            model = _checked(window, chance)
        except (ValueError, BricolageError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            reason = f"{type(error).__name__}: {error}"
            continue
        try:
            return drawn(seed, f"mutant of {name}", model)
        except InvalidGraph as error:  # what onnx infers of it is not what comes out
            reason = str(error)
    raise NoSample(f"mutant of {name}: {reason}")


@cache
def _network(name: str) -> Graph:
    workload = workloads()[name]
    return at_sizes(export(workload), workload.example_inputs(0))


def _window(graph: Graph, chance: random.Random) -> onnx.ModelProto | None:
    count = chance.randint(*_WINDOW)
    start = chance.randrange(max(1, len(graph) - count))
    region = Region(graph, ((1 << min(count, len(graph))) - 1) << start)
    weights = sum(value.const_value.nbytes for value in region.constants if value.const_value is not None)
    if weights > _WEIGHTS:
        return None
    proto: onnx.ModelProto = ir.to_proto(extract_region(region))
    for tensor in proto.graph.initializer:  # what lies in a file is read now
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            value = next(v for v in region.constants if v.name == tensor.name)
            assert value.const_value is not None
            tensor.CopyFrom(onnx.numpy_helper.from_array(value.const_value.numpy(), tensor.name))
    return proto


def _checked(model: onnx.ModelProto, chance: random.Random) -> ir.Model:
    """With shapes inferred anew, at some opset, sometimes with symbolic dimensions."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        elements = 1
        for dimension in value.type.tensor_type.shape.dim:
            elements *= dimension.dim_value or 1
        if elements > _ELEMENTS:
            raise ValueError("a tensor is large")
    onnx.checker.check_model(inferred, full_check=True)
    clean = to_model(inferred)
    if chance.random() < 0.4:
        raise_opset(clean, chance.choice(_OPSETS))
    return contexts.symbolic(clean) if chance.random() < 0.15 else clean


# --- changes, in place; what they make may be invalid


def _resize(model: onnx.ModelProto, chance: random.Random) -> None:
    """Other sizes of inputs; of images, both directions of space at least half of the time."""
    value = chance.choice(list(model.graph.input))
    dims = value.type.tensor_type.shape.dim
    if len(dims) == 4 and chance.random() < 0.7:
        for dim in dims[2:]:
            dim.dim_value = chance.choice(_SIZES)
    elif len(dims):
        chance.choice(list(dims)).dim_value = chance.choice(_SIZES)


def _attribute(model: onnx.ModelProto, chance: random.Random) -> None:
    """Another value of an attribute that is there, or one that was left out."""
    node = chance.choice(list(model.graph.node))
    if node.op_type in ("Conv", "MaxPool", "AveragePool") and chance.random() < 0.6:
        return _reach(node, chance)
    choices = [
        attribute
        for attribute in node.attribute
        if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT)
    ]
    if not choices:
        return None
    attribute = chance.choice(choices)
    if attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f *= chance.choice([0.5, 2.0, 10.0])
    elif attribute.name not in ("to", "dtype"):
        attribute.i = chance.choice([-2, -1, 0, 1, 2, attribute.i + 1])
    return None


def _reach(node: onnx.NodeProto, chance: random.Random) -> None:
    """What a convolution or pool reaches: strides, dilations, pads, rounding."""
    kernel = next((list(one.ints) for one in node.attribute if one.name == "kernel_shape"), [])
    rank = len(kernel)
    if not rank:
        return
    name = chance.choice(
        ["strides", "dilations", "pads", "auto_pad", *(["ceil_mode"] if node.op_type != "Conv" else [])]
    )
    values: dict[str, object] = {
        "strides": [chance.randint(1, 3) for _ in range(rank)],
        "dilations": [chance.randint(1, 2) for _ in range(rank)],
        "pads": [chance.randint(0, kernel[i % rank] - 1) for i in range(2 * rank)],
        "auto_pad": chance.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]),
        "ceil_mode": 1,
    }
    kept = [one for one in node.attribute if one.name != name and not (name == "auto_pad" and one.name == "pads")]
    kept = [one for one in kept if not (name == "pads" and one.name == "auto_pad")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, values[name])])


def _replace(model: onnx.ModelProto, chance: random.Random) -> None:
    """An operator by one of its kind."""
    node = chance.choice(list(model.graph.node))
    for group in _ALIKE:
        if node.op_type in group:
            node.op_type = chance.choice(group)
            if group is _UNARY:
                del node.attribute[:]
            return


def _output(model: onnx.ModelProto, chance: random.Random) -> None:
    """A value in between becomes an output."""
    known = {value.name for value in model.graph.output}
    inner = [value for value in model.graph.value_info if value.name not in known]
    if inner:
        model.graph.output.append(chance.choice(inner))


def _insert(model: onnx.ModelProto, chance: random.Random) -> None:
    """A function, or a Transpose and back, on the way to an operator."""
    index = chance.randrange(len(model.graph.node))
    node = model.graph.node[index]
    constants = {tensor.name for tensor in model.graph.initializer}
    ways = [i for i, name in enumerate(node.input) if name and name not in constants]
    if not ways:
        return
    at = chance.choice(ways)
    name, fresh = node.input[at], f"inserted.{index}.{chance.randrange(10**6)}"
    if chance.random() < 0.5:
        made = [helper.make_node(chance.choice(_UNARY), [name], [fresh])]
    else:
        made = [
            helper.make_node("Transpose", [name], [f"{fresh}.t"]),
            helper.make_node("Transpose", [f"{fresh}.t"], [fresh]),
        ]
    node.input[at] = fresh
    for offset, one in enumerate(made):
        model.graph.node.insert(index + offset, one)


def _share(model: onnx.ModelProto, chance: random.Random) -> None:
    """An operand of one operator becomes that of another: sizes fit seldom, and then it is used twice."""
    first, second = chance.choice(list(model.graph.node)), chance.choice(list(model.graph.node))
    if second.input and first.input:
        second.input[0] = first.input[0]


Change = Callable[[onnx.ModelProto, random.Random], None]
_CHANGES: tuple[Change, ...] = (_resize, _resize, _attribute, _attribute, _replace, _output, _insert, _share)
