"""A decoder's step, and the products of one, as ONNX models whose products are `com.microsoft.MatMulNBits`.

A step has the embedding of a token, its position, and the cache of keys and values as inputs; logits and the token's own keys
and values are its outputs, which the caller writes into the cache. Keys lie with the positions last: a product reads them so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bricolage.frontends.decoders.decoder_description import DecoderDescription, Matrix
from bricolage.graph.quantised_blocks import QuantisedBlocks, blocks_of
from bricolage.verify.decoder_reference import compute_rotary_angles

Array = np.ndarray[Any, Any]

_BLOCK = 32
"""Weights of a block of the random products."""
_NOTHING = -1e30
"""A score that no softmax sees."""


@dataclass
class _Graph:
    """Nodes and constants in the making."""

    level: int
    """`accuracy_level` of products."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def known(self, name: str, array: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, kind: str, *inputs: str, to: str = "", domain: str = "", **attributes: object) -> str:
        name = to or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def product(self, x: str, blocks: Matrix, name: str, to: str = "") -> str:
        assert isinstance(blocks, QuantisedBlocks), "the benchmark's files have no floats in matrices"
        n, k = blocks.n, blocks.k
        given = [x, self.known(f"{name}.integers", blocks.packed.reshape(n, k // blocks.block, -1))]
        given.append(self.known(f"{name}.scales", blocks.scales.reshape(-1)))
        if blocks.zeros is not None:
            given.append(self.known(f"{name}.zeros", blocks.zeros.reshape(-1)))
        sizes = {"K": k, "N": n, "bits": blocks.bits, "block_size": blocks.block, "accuracy_level": self.level}
        return self.add("MatMulNBits", *given, to=to, domain="com.microsoft", **sizes)

    def model(self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "decode", inputs, outputs, self.constants)
        versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=11)


def step(decoder: DecoderDescription, context: int, level: int) -> onnx.ModelProto:
    """One token through the decoder, with a cache of `context` positions."""
    g = _Graph(level)
    size, key_heads, group = decoder.head_size, decoder.key_heads, decoder.heads // decoder.key_heads
    floats = TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("x", floats, [1, decoder.width]),
        helper.make_tensor_value_info("position", TensorProto.INT64, [1]),
    ]
    outputs = [helper.make_tensor_value_info("logits", floats, [1, decoder.vocabulary])]
    half_cosines, half_sines = compute_rotary_angles(decoder.layers[0].rope, context)
    cosines = np.concatenate([half_cosines] * 2, axis=1).astype(np.float32)
    sines = np.concatenate([-half_sines, half_sines], axis=1).astype(
        np.float32
    )  # a pair's first number gets less of its second
    cosine = g.add("Gather", g.known("cosines", cosines), "position", axis=0)
    sine = g.add("Gather", g.known("sines", sines), "position", axis=0)
    places = g.known("places", np.arange(context, dtype=np.int64))
    own = g.add("Equal", places, "position")
    own_row = g.add("Reshape", own, g.known("as_column", np.array([context, 1], np.int64)))
    later = g.add("Greater", places, "position")
    mask = g.add(
        "Where", later, g.known("nothing", np.array(_NOTHING, np.float32)), g.known("zero", np.array(0, np.float32))
    )
    g.known("scale", np.array(size**-0.5, np.float32))
    g.known("swapped", np.roll(np.arange(size, dtype=np.int64), size // 2))
    shapes = {
        "queries": [key_heads, group, size],
        "as_key": [key_heads, 1, size],
        "row": [1, decoder.width],
    }
    for name, shape in shapes.items():
        g.known(name, np.array(shape, np.int64))

    def turned(x: str) -> str:
        other = g.add("Gather", x, "swapped", axis=2)
        return g.add("Add", g.add("Mul", x, cosine), g.add("Mul", other, sine))

    def normalised(x: str, weight: Array, name: str) -> str:
        known = g.known(name, weight)
        return g.add("RMSNormalization", x, known, axis=-1, epsilon=decoder.epsilon)

    x = "x"
    for i, layer in enumerate(decoder.layers):
        inputs += [
            helper.make_tensor_value_info(f"keys_{i}", floats, [key_heads, size, context]),
            helper.make_tensor_value_info(f"values_{i}", floats, [key_heads, context, size]),
        ]
        outputs += [
            helper.make_tensor_value_info(f"key_{i}", floats, [key_heads, size, 1]),
            helper.make_tensor_value_info(f"value_{i}", floats, [key_heads, 1, size]),
        ]
        h = normalised(x, layer.attention_norm, f"norm_{i}")
        query = turned(g.add("Reshape", g.product(h, layer.query, f"query_{i}"), "queries"))
        key = turned(g.add("Reshape", g.product(h, layer.key, f"key_weight_{i}"), "as_key"))
        key = g.add("Transpose", key, to=f"key_{i}", perm=[0, 2, 1])
        value = g.add("Reshape", g.product(h, layer.value, f"value_weight_{i}"), "as_key", to=f"value_{i}")
        keys = g.add("Where", own, key, f"keys_{i}")
        values = g.add("Where", own_row, value, f"values_{i}")
        scores = g.add("Add", g.add("MatMul", g.add("Mul", query, "scale"), keys), mask)
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), values)
        x = g.add("Add", x, g.product(g.add("Reshape", mixed, "row"), layer.output, f"output_{i}"))
        h = normalised(x, layer.feed_forward_norm, f"feed_norm_{i}")
        gate, up = g.product(h, layer.gate, f"gate_{i}"), g.product(h, layer.up, f"up_{i}")
        inner = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
        x = g.add("Add", x, g.product(inner, layer.down, f"down_{i}"))
    g.product(normalised(x, decoder.norm, "norm"), decoder.embedding, "head", to="logits")
    return g.model(inputs, outputs)


GPT2_LAYERS, GPT2_WIDTH, GPT2_WORDS = 12, 768, 50257


def gpt2_products(level: int) -> onnx.ModelProto:
    """The 123.5 M weights of GPT-2's products for one token, one behind another, without its attention: random blocks of 4 bits."""
    draw = np.random.default_rng(0)
    g = _Graph(level)

    def random(n: int, k: int) -> QuantisedBlocks:
        integers = draw.integers(0, 16, (n, k), np.uint8)
        scales = ((0.5 + draw.random((n, k // _BLOCK))) / (5 * np.sqrt(k))).astype(np.float16).astype(np.float32)
        return blocks_of(integers, scales, None, 4, _BLOCK)

    x, wide = "x", GPT2_WIDTH
    starts, ends = g.known("starts", np.array([0], np.int64)), g.known("ends", np.array([wide], np.int64))
    axes = g.known("axes", np.array([1], np.int64))
    for i in range(GPT2_LAYERS):
        joined = g.product(x, random(3 * wide, wide), f"qkv_{i}")
        mixed = g.add("Slice", joined, starts, ends, axes)
        x = g.add("Add", x, g.product(mixed, random(wide, wide), f"output_{i}"))
        inner = g.add("Tanh", g.product(x, random(4 * wide, wide), f"up_{i}"))
        x = g.add("Add", x, g.product(inner, random(wide, 4 * wide), f"down_{i}"))
    g.product(x, random(GPT2_WORDS, wide), "head", to="logits")
    shapes = [1, wide], [1, GPT2_WORDS]
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(("x", "logits"), shapes, strict=True)
    )
    return g.model([given], [made])


def gpt2_reference(model: onnx.ModelProto, x: Array) -> Array:
    """What `gpt2_products` computes, in float64."""
    known = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}

    def product(x: Array, name: str) -> Array:
        packed, scales = known[f"{name}.integers"], known[f"{name}.scales"]
        integers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1, _BLOCK).astype(np.float32)
        numbers = (integers - 8) * scales.reshape(len(packed), -1, 1)
        found: Array = x @ numbers.reshape(len(packed), -1).T.astype(np.float64)
        return found

    for i in range(GPT2_LAYERS):
        x = x + product(product(x, f"qkv_{i}")[:, :GPT2_WIDTH], f"output_{i}")
        x = x + product(np.tanh(product(x, f"up_{i}")), f"down_{i}")
    return product(x, "head")
