"""The nine `light_*.onnx` networks of the onnx package, with weights worth computing with.

The package replaces their weights by constants (`ConstantOfShape`), under which the output is the same for all inputs.
Here the graphs keep their operators and operator set; every float parameter becomes a seeded random initializer,
calibrated layer by layer in one pass over a batch, as `calibrate` does for PyTorch modules. Parameters are no longer
listed as graph inputs, since backends must not fold what a caller could override.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import with_mean
from benchmarks.workloads.inputs import smooth_noise

# workload name without its prefix -> file name without prefix and suffix
FILES: Mapping[str, str] = {
    "alexnet": "bvlc_alexnet",
    "densenet121": "densenet121",
    "inception-v1": "inception_v1",
    "inception-v2": "inception_v2",
    "resnet50": "resnet50",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "vgg19": "vgg19",
    "zfnet512": "zfnet512",
}
_MEAN, _BRANCH = 1.25, 0.35
_CALIBRATION_SEED, _CALIBRATION_BATCH = 1_000_003, 3

Attributes = dict[str, Any]
Prepare = Callable[[onnx.NodeProto, dict[str, Tensor]], None]


def light_models() -> dict[str, onnx.ModelProto]:
    """All nine networks by their file name (`light_resnet50`, ...), with random weights."""
    return {f"light_{file}": light_model(short) for short, file in FILES.items()}


def light_model(short: str) -> onnx.ModelProto:
    """One network by its name in `FILES`.

    Raises KeyError for an unknown name and FileNotFoundError when the onnx package comes without its test data.
    """
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{FILES[short]}.onnx"
    model = onnx.load(path)
    shapes = _take_parameters(model.graph)
    # before version 4 initializers must be inputs too, that is, parameters a caller may override
    model.ir_version = 8
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = LightNetwork(model.graph)
        network.calibrate(shapes)
    for name in shapes:
        model.graph.initializer.append(numpy_helper.from_array(network.parameters_by_name[name].numpy(), name))
    return model


def write_light(short: str, path: Path) -> None:
    """Write one network to `path`, as a single file."""
    onnx.save(light_model(short), path)


def light_module(short: str) -> Any:
    """One network as a PyTorch module that evaluates its graph, for comparison with what a backend computes."""
    model = light_model(short)
    network = LightNetwork(model.graph)
    for initializer in model.graph.initializer:
        network.parameters_by_name[initializer.name] = torch.from_numpy(numpy_helper.to_array(initializer).copy())
    return network.eval()


class LightNetwork(nn.Module):
    """Evaluates a graph made of the operators that the light networks use, in operator set 9."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        self.nodes = list(graph.node)
        self.input = graph.input[0].name
        self.outputs = [output.name for output in graph.output]
        self.parameters_by_name: dict[str, Tensor] = {
            i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in graph.initializer
        }

    def forward(self, image: Tensor) -> Any:
        values = self._run(image)
        results = tuple(values[name] for name in self.outputs)
        return results[0] if len(results) == 1 else results

    def calibrate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give every float parameter in `shapes` a value, right before the first operator that uses it runs."""
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                consumers.setdefault(name, []).append(node)

        def prepare(node: onnx.NodeProto, values: dict[str, Tensor]) -> None:
            for name in node.input:
                if name in shapes and name not in values:
                    values[name] = torch.zeros(shapes[name])
            self._fit(node, values, consumers)
            for name in node.input:
                if name in shapes:
                    self.parameters_by_name[name] = values[name]

        self._run(torch.from_numpy(smooth_noise((_CALIBRATION_BATCH, 3, 224, 224), _CALIBRATION_SEED)), prepare)

    def _run(self, image: Tensor, prepare: Prepare | None = None) -> dict[str, Tensor]:
        values = {**self.parameters_by_name, self.input: image}
        last_use = {name: index for index, node in enumerate(self.nodes) for name in node.input}
        for index, node in enumerate(self.nodes):
            if prepare is not None:
                prepare(node, values)
            values[node.output[0]] = _apply(node, values, image.shape[0])
            for name in set(node.input):
                if last_use[name] == index and name not in self.outputs:
                    del values[name]
        return values

    def _fit(
        self, node: onnx.NodeProto, values: dict[str, Tensor], consumers: Mapping[str, list[onnx.NodeProto]]
    ) -> None:
        """Choose the parameters of one operator from the activations that reach it."""
        names = list(node.input)
        after = {user.op_type for user in consumers.get(node.output[0], [])}
        if node.op_type == "BatchNormalization":
            axes = [0, *range(2, values[names[0]].dim())]
            variance, mean = torch.var_mean(values[names[0]], axes)
            scale, shift = (_BRANCH, 0.0) if "Sum" in after else (1.0, _MEAN)
            values[names[1]] = scale * torch.empty_like(mean).uniform_(0.8, 1.2)
            values[names[2]] = torch.empty_like(mean).normal_(shift, 0.1)
            values[names[3]], values[names[4]] = mean, variance
        elif node.op_type in ("Conv", "Gemm"):
            _fit_weights(node, values, _MEAN if "Relu" in after else None)
        elif node.op_type == "Unsqueeze" and names[0] in values:
            # the per-channel scale (close to 1) or shift (close to 0) that follows a batch normalisation here
            scaled = consumers[node.output[0]][0].op_type == "Mul"
            values[names[0]].normal_(1.0 if scaled else 0.0, 0.1)


def _take_parameters(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Remove all float parameters from the graph, constants and initializers alike, and return their shapes."""
    held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    shapes = {name: value.shape for name, value in held.items() if value.dtype == np.float32}
    fills = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes |= {node.output[0]: tuple(int(size) for size in held[node.input[0]]) for node in fills}
    for node in fills:
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in shapes or graph.initializer[index].name not in used:
            del graph.initializer[index]
    for index in reversed(range(len(graph.input))):
        if graph.input[index].name in held:
            del graph.input[index]
    return {name: shape for name, shape in shapes.items() if name in used}


def _fit_weights(node: onnx.NodeProto, values: dict[str, Tensor], mean: float | None) -> None:
    """Give a convolution or matrix product unit deviation and, where `mean` is given, that mean in every channel."""
    weight = values[node.input[1]].normal_()
    x = values[node.input[0]]
    groups = _attributes(node).get("group", 1)
    mean_input = x.mean([0, *range(2, x.dim())])
    adjustable = mean is not None and weight.shape[1] > 1
    if mean is not None and adjustable and mean_input.square().mean() > 0.2 * x.square().mean():
        weight = with_mean(weight, mean_input, groups, 0.0)
    y = _apply(node, {**values, node.input[1]: weight}, x.shape[0])
    weight = weight / y.square().mean().sqrt()
    if len(node.input) > 2:
        bias = torch.zeros_like(values[node.input[2]])
        if mean is not None:
            y = _apply(node, {**values, node.input[1]: weight, node.input[2]: bias}, x.shape[0])
            bias = mean - y.mean([0, *range(2, y.dim())])
        values[node.input[2]].copy_(bias + 0.1 * torch.randn_like(bias))
    # in place: the operator may see its parameter through a reshape
    values[node.input[1]].copy_(weight)


def _attributes(node: onnx.NodeProto) -> Attributes:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _apply(node: onnx.NodeProto, values: Mapping[str, Tensor], batch: int) -> Tensor:
    """The result of one operator. Reshapes to a fixed batch of 1 take the actual batch instead."""
    x, *rest = (values[name] for name in node.input)
    if node.op_type == "Reshape":
        return _reshape(x, rest[0].tolist(), batch)
    return _OPERATORS[node.op_type](x, rest, _attributes(node))


def _conv(x: Tensor, rest: list[Tensor], attributes: Attributes) -> Tensor:
    bias = rest[1] if len(rest) > 1 else None
    padded = _pad(x, attributes, 0.0)
    return functional.conv2d(padded, rest[0], bias, attributes.get("strides", 1), groups=attributes.get("group", 1))


def _max_pool(x: Tensor, _: list[Tensor], attributes: Attributes) -> Tensor:
    return functional.max_pool2d(
        _pad(x, attributes, -torch.inf), attributes["kernel_shape"], attributes.get("strides", 1)
    )


def _average_pool(x: Tensor, _: list[Tensor], attributes: Attributes) -> Tensor:
    """Averages over the elements that exist: padding is not counted."""
    kernel, stride = attributes["kernel_shape"], attributes.get("strides", 1)
    total = functional.avg_pool2d(_pad(x, attributes, 0.0), kernel, stride)
    share = functional.avg_pool2d(_pad(torch.ones_like(x[:1, :1]), attributes, 0.0), kernel, stride)
    return total / share


def _pad(x: Tensor, attributes: Attributes, value: float) -> Tensor:
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    return functional.pad(x, (left, right, top, bottom), value=value)


def _batch_norm(x: Tensor, rest: list[Tensor], attributes: Attributes) -> Tensor:
    scale, shift, mean, variance = rest
    return functional.batch_norm(x, mean, variance, scale, shift, eps=attributes.get("epsilon", 1e-5))


def _local_response_norm(x: Tensor, _: list[Tensor], attributes: Attributes) -> Tensor:
    return functional.local_response_norm(
        x, attributes["size"], attributes["alpha"], attributes["beta"], attributes["bias"]
    )


def _reshape(x: Tensor, shape: list[int], batch: int) -> Tensor:
    target = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    if x.shape[0] == batch and target[0] == 1:
        target[0] = batch
    return x.reshape(target)


def _unsqueeze(x: Tensor, _: list[Tensor], attributes: Attributes) -> Tensor:
    for axis in sorted(attributes["axes"]):
        x = x.unsqueeze(axis)
    return x


def _sum(x: Tensor, rest: list[Tensor], _: Attributes) -> Tensor:
    for other in rest:
        x = x + other
    return x


_OPERATORS: Mapping[str, Callable[[Tensor, list[Tensor], Attributes], Tensor]] = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "LRN": _local_response_norm,
    "Unsqueeze": _unsqueeze,
    "Sum": _sum,
    "Relu": lambda x, *_: x.relu(),
    "Dropout": lambda x, *_: x,
    "GlobalAveragePool": lambda x, *_: x.mean([2, 3], keepdim=True),
    "Gemm": lambda x, rest, _: functional.linear(x, rest[0], rest[1]),
    # operator set 9 flattens to two dimensions from `axis` on
    "Softmax": lambda x, *_: x.flatten(1).softmax(1).reshape(x.shape),
    "Mul": lambda x, rest, _: x * rest[0],
    "Add": lambda x, rest, _: x + rest[0],
    "Concat": lambda x, rest, attributes: torch.cat([x, *rest], attributes["axis"]),
    "Transpose": lambda x, _, attributes: x.permute(attributes["perm"]),
}
