"""Where QuantizeLinear and DequantizeLinear stand.

An activation that a product reads is quantised once for all products that read it; everything else reads it as it was. The result
of a convolution, or of the rectifier behind it, is quantised for all readers, since runtimes compute a convolution in bytes only
where its result is bytes too. Products of matrices leave their sums as float numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_value
from bricolage.quantization.byte_weights import QuantisedWeights
from bricolage.quantization.judge import switches
from bricolage.quantization.observers import AffineScale
from bricolage.quantization.products import ORDER_KEEPING, WeightedProduct
from bricolage.rewrite.builder import Names


@dataclass(frozen=True)
class Scales:
    """Of all integers of a model."""

    activations: Mapping[str, AffineScale]
    """By name of a value."""
    weights: Mapping[str, QuantisedWeights]
    biases: Mapping[str, np.ndarray] = field(default_factory=dict)
    """In the place of the operators' own, by what their product computes."""


def source_of_range(value: ir.Value, paired: Collection[str]) -> str:
    """The value whose range this one has: in front of operators that only move numbers, as far as those are quantised too."""
    source = value
    at: ir.Value | None = value
    while at is not None and (node := at.producer()) is not None and not node.domain and node.op_type in ORDER_KEEPING:
        at = node.inputs[0]
        if at is not None and at.name in paired:
            source = at
    return source.name or ""


def quantised_values(
    model: ir.Model, products: Sequence[WeightedProduct], sums: bool, float_results: bool = False
) -> dict[str, str]:
    """Names of the activations that become bytes, each with the name of the value whose range it has.

    Args:
        float_results: results of convolutions that no product reads as they are do not.
    """
    values = {value.name or "": value for value in _values(model)}
    results = [] if float_results else [product.end for product in products if product.op_type == "Conv"]
    names = dict.fromkeys([product.activation for product in products] + results)
    if sums:
        names |= dict.fromkeys(_sums(values, names))
    return {name: source_of_range(values[name], names) for name in names if name in values}


def _sums(values: Mapping[str, ir.Value], names: Collection[str]) -> list[str]:
    """Both sides of each sum of which one side is bytes."""
    sums: list[str] = []
    for name in names:
        for node, _ in values[name].uses():
            if node.op_type == "Add" and not node.domain and len(node.inputs) == 2:
                others = [source for source in node.inputs if source is not None and source.const_value is None]
                if len(others) == 2:
                    sums += [other.name or "" for other in others]
    return sums


def _values(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]


@dataclass
class _Inserter:
    """Puts pairs into one model, in place."""

    model: ir.Model
    scales: Scales
    switches: Mapping[str, ir.Value] | None
    """Truths at run time, by what a product computes: whether it is quantised."""
    names: Names = field(init=False)
    values: dict[str, ir.Value] = field(init=False)
    _constants: dict[str, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.model)
        self.values = {value.name or "": value for value in _values(self.model)}

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        if name not in self._constants:
            self._constants[name] = added_constant(self.model, self.names, name, array)
        return self._constants[name]

    def node(
        self, op_type: str, *inputs: ir.Value, like: ir.Value, dtype: ir.DataType, **attributes: object
    ) -> ir.Node:
        node = ir.node(op_type, inputs, attributes, name=self.names.fresh(f"{like.name}.{op_type}"))
        (result,) = node.outputs
        result.name, result.shape, result.type = (
            self.names.fresh(f"{like.name}.{op_type}"),
            like.shape,
            ir.TensorType(dtype),
        )
        return node

    def place(self, nodes: Sequence[ir.Node], behind: ir.Value) -> None:
        """Inserts nodes just after what computes a value; after nothing, as the first of the graph."""
        producer = behind.producer()
        if producer is not None:
            self.model.graph.insert_after(producer, nodes)
        else:
            self.model.graph.insert_before(self.model.graph[0], nodes)

    def pair(self, value: ir.Value, scale: AffineScale) -> tuple[list[ir.Node], ir.Value]:
        """The nodes that make bytes of a value and numbers of these, and the result."""
        step = self.constant(f"{value.name}.scale", np.asarray(scale.scale, np.float32))
        zero = self.constant(f"{value.name}.zero", np.asarray(scale.zero, np.uint8))
        q = self.node("QuantizeLinear", value, step, zero, like=value, dtype=ir.DataType.UINT8)
        dq = self.node("DequantizeLinear", q.outputs[0], step, zero, like=value, dtype=ir.DataType.FLOAT)
        return [q, dq], dq.outputs[0]

    def select(self, switch: ir.Value, on: ir.Value, off: ir.Value) -> ir.Node:
        return self.node("Where", switch, on, off, like=off, dtype=ir.DataType.FLOAT)

    def activation(
        self,
        name: str,
        scale: AffineScale,
        readers: Sequence[WeightedProduct],
        maker: WeightedProduct | None,
        all_read: bool,
    ) -> None:
        """Quantises one activation for the products that read it, or for all readers."""
        value = self.values[name]
        uses = list(value.uses())
        nodes, result = self.pair(value, scale)
        replaced: list[tuple[ir.Node, int, ir.Value]] = []
        base = value
        if all_read and maker is not None and self.switches is not None:
            chosen = self.select(self.switches[maker.output], result, value)
            nodes.append(chosen)
            base = chosen.outputs[0]
        elif all_read:
            base = result
        products = {reader.output: reader for reader in readers}
        for node, index in uses:
            product = products.get(node.outputs[0].name or "") if index == 0 else None
            if product is None:
                if base is not value:
                    replaced.append((node, index, base))
            elif self.switches is None:
                replaced.append((node, index, result))
            else:
                chosen = self.select(self.switches[product.output], result, base)
                nodes.append(chosen)
                replaced.append((node, index, chosen.outputs[0]))
        for node, index, new in replaced:
            node.replace_input_with(index, new)
        self.place(nodes, value)
        if base is not value and value.is_graph_output():
            self._hand_over(value, base)

    def _hand_over(self, value: ir.Value, to: ir.Value) -> None:
        """A graph's output keeps its name."""
        outputs = self.model.graph.outputs
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = to
        name = value.name or ""
        value.name = self.names.fresh(f"{name}.float")
        to.name = name

    def weights(self, product: WeightedProduct) -> None:
        """Puts bytes in the place of a product's weights, and int32 in that of its bias."""
        node = self.values[product.output].producer()
        assert node is not None
        quantised = self.scales.weights[product.output]
        scales = self.constant(f"{product.output}.weight.scale", quantised.scales)
        axis = product.channel_axis % quantised.integers.ndim
        weight = node.inputs[1]
        assert weight is not None
        integers = self.constant(f"{product.output}.weight", quantised.integers)
        zeros = self.constant(f"{product.output}.weight.zero", np.zeros(quantised.scales.shape, np.int8))
        self._constant_input(node, 1, product, integers, scales, zeros, axis)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is None or bias.const_value is None:
            return
        unit = (quantised.scales * self.scales.activations[product.activation].scale).astype(np.float32)
        float_bias = self.scales.biases.get(product.output, bias.const_value.numpy())
        flat = np.broadcast_to(float_bias.reshape(-1), unit.shape)
        whole = np.rint(flat / unit.astype(np.float64)).clip(-(2**31), 2**31 - 1).astype(np.int32)
        units = self.constant(f"{product.output}.bias.scale", unit)
        zeros = self.constant(f"{product.output}.bias.zero", np.zeros(unit.shape, np.int32))
        self._constant_input(node, 2, product, self.constant(f"{product.output}.bias", whole), units, zeros, 0)

    def _constant_input(
        self,
        node: ir.Node,
        index: int,
        product: WeightedProduct,
        whole: ir.Value,
        scales: ir.Value,
        zeros: ir.Value,
        axis: int,
    ) -> None:
        original = node.inputs[index]
        assert original is not None
        dq = self.node("DequantizeLinear", whole, scales, zeros, like=whole, dtype=ir.DataType.FLOAT, axis=axis)
        nodes, result = [dq], dq.outputs[0]
        if self.switches is not None:
            chosen = self.select(self.switches[product.output], result, original)
            nodes.append(chosen)
            result = chosen.outputs[0]
        self.model.graph.insert_before(node, nodes)
        node.replace_input_with(index, result)


def added_constant(model: ir.Model, names: Names, name: str, array: np.ndarray) -> ir.Value:
    """A new initialiser of the model, with that name or one like it."""
    value = constant_value(names.fresh(name), array)
    model.graph.register_initializer(value)
    return value


def with_rounded_copies(
    model: ir.Model, products: Sequence[WeightedProduct], scales: Scales
) -> tuple[ir.Model, dict[str, str]]:
    """A copy of a model that computes each product once more from rounded sides, and the names of these results by those of the
    products'. All that follows reads what it read."""
    clone = model.clone()
    inserter = _Inserter(clone, scales, None)
    copies: dict[str, str] = {}
    for product in products:
        node, quantised = inserter.values[product.output].producer(), scales.weights[product.output]
        assert node is not None
        activation = inserter.values[product.activation]
        pair, rounded = inserter.pair(activation, scales.activations[product.activation])
        weight = quantised.floats(product.channel_axis % quantised.integers.ndim)
        inputs = [rounded, added_constant(clone, inserter.names, f"{product.output}.rounded", weight), *node.inputs[2:]]
        copy = ir.node(node.op_type, inputs, {attribute.name: attribute for attribute in node.attributes.values()})
        output, (result,) = node.outputs[0], copy.outputs
        copy.name = result.name = inserter.names.fresh(f"{product.output}.from_rounded")
        result.shape, result.type = output.shape, output.type
        clone.graph.insert_after(node, [*pair, copy])
        copies[product.output] = result.name
    return clone, copies


def with_pairs(
    model: ir.Model,
    products: Sequence[WeightedProduct],
    scales: Scales,
    *,
    sums: bool = False,
    float_results: bool = False,
    switched: bool = False,
) -> ir.Model:
    """A copy of a model in which `products` compute with bytes.

    Args:
        sums, float_results: see `quantised_values`.
        switched: each product has an input, a truth (see `judge.switches`), that says whether it is quantised.
    """
    clone = model.clone()
    inserter = _Inserter(clone, scales, switches(clone, products) if switched else None)
    paired = quantised_values(clone, products, sums, float_results)
    ends = {product.end: product for product in products if product.op_type == "Conv"}
    for name in paired:
        readers = [product for product in products if product.activation == name]
        everywhere = name in ends or (sums and not switched)
        inserter.activation(name, scales.activations[name], readers, ends.get(name), everywhere)
    for product in products:
        inserter.weights(product)
    unused = [value for value in clone.graph.initializers.values() if not value.uses() and not value.is_graph_output()]
    for value in unused:
        if not value.is_graph_input():
            del clone.graph.initializers[value.name or ""]
    return clone
