"""One decoder as ONNX files with a cache, spelt as exporters spell them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    matrix_numbers,
)
from bricolage.graph.quantised_blocks import QuantisedBlocks

Spelling = Literal["elementary", "fused", "standard"]
"""As Transformers' models are traced; as ONNX Runtime GenAI writes them; with ONNX's own operators of opset 23."""
_MICROSOFT = "com.microsoft"
_LEAST = float(np.finfo(np.float32).min)


class CachedGraph:
    """Nodes and weights in the making."""

    interleaved = 0
    """1 where numbers that turn together are side by side, which the spelling `elementary` does not have."""
    turned = 0
    """Numbers of a head that turn, in the spelling `standard`; 0 for all."""

    def __init__(self, decoder: DecoderDescription, spelling: Spelling) -> None:
        self.decoder, self.spelling = decoder, spelling
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def add(self, kind: str, *inputs: str | np.ndarray | int | float, outputs: int = 1, **words: Any) -> Any:
        """The name of a node's result, or names of several; arrays and numbers become constants."""
        names = [self.constant(value) if not isinstance(value, str) else value for value in inputs]
        results = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, names, results, name=f"{kind}_{len(self.nodes)}", **words))
        return results[0] if outputs == 1 else results

    def constant(self, value: np.ndarray | float) -> str:
        """Its name; integers become int64, other numbers float32."""
        array = np.asarray(value)
        if not isinstance(value, np.ndarray):
            array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        name = f"constant_{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def model(self) -> onnx.ModelProto:
        """The whole."""
        decoder = self.decoder
        self.declare("input_ids", TensorProto.INT64, ["batch", "sequence"])
        self.declare("attention_mask", TensorProto.INT64, ["batch", "total"])
        if self.spelling != "fused":
            self.declare("position_ids", TensorProto.INT64, ["batch", "sequence"])
        self.prepare()
        x = self.add("Gather", matrix_numbers(decoder.embedding), "input_ids")
        for number, layer in enumerate(decoder.layers):
            x = self.add("Add", x, self.attention(self.norm(x, layer.attention_norm), layer, number))
            x = self.add("Add", x, self.feed_forward(self.norm(x, layer.feed_forward_norm), layer))
        self.nodes.append(
            helper.make_node(
                "Identity",
                [self.cap(self.product(self.norm(x, decoder.norm), decoder.embedding), decoder.logit_softcap)],
                ["logits"],
            )
        )
        self.outputs.insert(0, helper.make_tensor_value_info("logits", 1, ["batch", "sequence", decoder.vocabulary]))
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, list(self.weights.values()))
        opsets = [
            helper.make_opsetid("", 23 if self.spelling == "standard" else 18),
            helper.make_opsetid(_MICROSOFT, 1),
        ]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def declare(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """An input."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def prepare(self) -> None:
        """Angles and masks, which all layers share."""
        rope, add = self.decoder.layers[0].rope, self.add
        table = np.outer(np.arange(self.decoder.context_length), rope.frequencies)
        self.tables = [np.cos(table).astype(np.float32), np.sin(table).astype(np.float32)]
        if self.spelling == "fused":
            count = add("ReduceSum", "attention_mask", np.array([1]), keepdims=0)
            self.last = add("Cast", add("Sub", count, 1), to=TensorProto.INT32)
            self.total = add("Cast", add("Gather", add("Shape", "attention_mask"), 1), to=TensorProto.INT32)
            self.names = [self.constant(each) for each in self.tables]
            return
        positions = add("Cast", add("Unsqueeze", "position_ids", np.array([1])), to=TensorProto.FLOAT)
        frequencies = rope.frequencies.astype(np.float32)[None, :, None]
        angles = add("Transpose", add("MatMul", frequencies, positions), perm=[0, 2, 1])
        whole = (
            angles
            if self.spelling == "standard"
            else add("Unsqueeze", add("Concat", angles, angles, axis=-1), np.array([1]))
        )
        self.names = [add("Cos", whole), add("Sin", whole)]
        total = add("Gather", add("Shape", "attention_mask"), 1)
        new = add("Gather", add("Shape", "input_ids"), 1)
        keys = add("Range", 0, total, 1)
        queries = add("Unsqueeze", add("Range", add("Sub", total, new), total, 1), np.array([1]))
        real = add("Unsqueeze", add("Cast", "attention_mask", to=TensorProto.BOOL), np.array([1]))
        self.seen = add("And", add("LessOrEqual", keys, queries), real)
        self.keys, self.queries = keys, queries

    def mask(self, window: int | None) -> str:
        """What is added to scores."""
        seen = self.seen
        if window is not None:
            seen = self.add("And", seen, self.add("Greater", self.keys, self.add("Sub", self.queries, window)))
        return self.add("Unsqueeze", self.add("Where", seen, 0.0, _LEAST), np.array([1]))  # type: ignore[no-any-return]

    def norm(self, x: str, weight: np.ndarray) -> str:
        """Over the last axis."""
        epsilon = self.decoder.epsilon
        if self.spelling != "elementary":
            kind = "RMSNormalization" if self.spelling == "standard" else "SimplifiedLayerNormalization"
            return self.add(kind, x, weight, axis=-1, epsilon=epsilon)  # type: ignore[no-any-return]
        mean = self.add("ReduceMean", self.add("Pow", x, 2.0), np.array([-1]))
        root = self.add("Sqrt", self.add("Add", mean, epsilon))
        return self.add("Mul", weight, self.add("Mul", x, self.add("Div", 1.0, root)))  # type: ignore[no-any-return]

    def product(self, x: str, matrix: Matrix, bias: np.ndarray | None = None) -> str:
        """x · matrixᵀ + bias."""
        if isinstance(matrix, QuantisedBlocks) and self.spelling == "fused":
            blocks = matrix.packed.reshape(matrix.n, matrix.scales.shape[1], -1)
            zeros = () if matrix.zeros is None else (matrix.zeros.reshape(-1),)
            words = {"K": matrix.k, "N": matrix.n, "bits": matrix.bits, "block_size": matrix.block}
            y = self.add("MatMulNBits", x, blocks, matrix.scales.reshape(-1), *zeros, domain=_MICROSOFT, **words)
        else:
            y = self.add("MatMul", x, matrix_numbers(matrix).T)
        return y if bias is None else self.add("Add", y, bias)  # type: ignore[no-any-return]

    def attention(self, h: str, layer: LayerDescription, number: int) -> str:
        """In front of the residual sum."""
        decoder, size = self.decoder, self.decoder.head_size
        pasts = [
            self.declare(f"past_key_values.{number}.{kind}", 1, ["batch", decoder.key_heads, "past", size])
            for kind in ("key", "value")
        ]
        query, key, value = (
            self.product(h, getattr(layer, role), getattr(layer, f"{role}_bias")) for role in ("query", "key", "value")
        )
        if self.spelling == "fused":
            query, key = (
                x if weight is None else self.norm_of_heads(x, weight)
                for x, weight in ((query, layer.query_norm), (key, layer.key_norm))
            )
            words = {
                "num_heads": decoder.heads,
                "kv_num_heads": decoder.key_heads,
                "do_rotary": 1,
                "scale": decoder.query_scale,
                "rotary_interleaved": self.interleaved,
                "softcap": decoder.attention_softcap or 0.0,
            }
            window = -1 if layer.sliding_window is None else layer.sliding_window
            given = (query, key, value, *pasts, self.last, self.total, *self.names)
            mixed, *presents = self.add(
                "GroupQueryAttention", *given, outputs=3, domain=_MICROSOFT, local_window_size=window, **words
            )
        else:
            heads = (
                (query, decoder.heads, layer.query_norm), (key, decoder.key_heads, layer.key_norm), (value, decoder.key_heads, None)
            )  # fmt: skip
            query, key, value = (self.split(x, count, weight) for x, count, weight in heads)
            query, key = self.turn(query), self.turn(key)
            mixed, presents = self.mix(query, key, value, pasts, self.mask(layer.sliding_window))
        for kind, name in zip(("key", "value"), presents, strict=True):
            self.nodes.append(helper.make_node("Identity", [name], [f"present.{number}.{kind}"]))
            shape = ["batch", decoder.key_heads, "total", size]
            self.outputs.append(helper.make_tensor_value_info(f"present.{number}.{kind}", 1, shape))
        return self.product(mixed, layer.output)

    def norm_of_heads(self, x: str, weight: np.ndarray) -> str:
        """Of heads that lie side by side, which are rows for a while."""
        size = len(weight)
        count = self.decoder.heads if weight is self.decoder.layers[0].query_norm else self.decoder.key_heads
        rows = self.norm(self.add("Reshape", x, np.array([0, -1, size])), weight)
        return self.add("Reshape", rows, np.array([0, -1, count * size]))  # type: ignore[no-any-return]

    def split(self, x: str, heads: int, weight: np.ndarray | None) -> str:
        """[batch, heads, tokens, size]."""
        x = self.add("Reshape", x, np.array([0, 0, heads, self.decoder.head_size]))
        x = x if weight is None else self.norm(x, weight)
        return self.add("Transpose", x, perm=[0, 2, 1, 3])  # type: ignore[no-any-return]

    def turn(self, x: str) -> str:
        """By positions."""
        if self.spelling == "standard":
            words = {"interleaved": self.interleaved, "rotary_embedding_dim": self.turned}
            return self.add("RotaryEmbedding", x, *self.names, **words)  # type: ignore[no-any-return]
        half, last, end = np.array([self.decoder.head_size // 2]), np.array([3]), np.array([2**31])
        first = self.add("Slice", x, np.array([0]), half, last)
        other = self.add("Concat", self.add("Neg", self.add("Slice", x, half, end, last)), first, axis=-1)
        cosines, sines = self.names
        return self.add("Add", self.add("Mul", x, cosines), self.add("Mul", other, sines))  # type: ignore[no-any-return]

    def mix(self, query: str, key: str, value: str, pasts: Sequence[str], mask: str) -> tuple[str, list[str]]:
        """What is mixed [batch, tokens, heads · size], and the new cache."""
        add, decoder = self.add, self.decoder
        groups, size = decoder.heads // decoder.key_heads, decoder.head_size
        if self.spelling == "standard":
            words = {"scale": decoder.query_scale, "softcap": decoder.attention_softcap or 0.0}
            mixed, *presents = add("Attention", query, key, value, mask, *pasts, outputs=3, **words)
        else:
            presents = [add("Concat", past, new, axis=2) for past, new in zip(pasts, (key, value), strict=True)]
            total = add("Gather", add("Shape", presents[0]), np.array([2]))
            shape = add("Concat", np.array([1, decoder.key_heads, groups]), total, np.array([size]), axis=0)
            flat = add("Concat", np.array([1, decoder.heads]), total, np.array([size]), axis=0)
            keys, values = (
                add("Reshape", add("Expand", add("Unsqueeze", each, np.array([2])), shape), flat) for each in presents
            )
            root = float(np.sqrt(decoder.query_scale))
            scores = add("MatMul", add("Mul", query, root), add("Mul", add("Transpose", keys, perm=[0, 1, 3, 2]), root))
            scores = self.cap(scores, decoder.attention_softcap)
            mixed = add("MatMul", add("Softmax", add("Add", scores, mask), axis=-1), values)
        back = add("Transpose", mixed, perm=[0, 2, 1, 3])
        return add("Reshape", back, np.array([0, 0, decoder.heads * size])), presents

    def cap(self, x: str, cap: float | None) -> str:
        """x, or cap · tanh(x / cap)."""
        if cap is None:
            return x
        return self.add("Mul", self.add("Tanh", self.add("Div", x, cap)), cap)  # type: ignore[no-any-return]

    def feed_forward(self, h: str, layer: LayerDescription) -> str:
        """In front of the residual sum."""
        gate = self.product(h, layer.gate)
        active = self.add("Mul", gate, self.activate(gate))
        return self.product(self.add("Mul", active, self.product(h, layer.up)), layer.down)

    def activate(self, gate: str) -> str:
        """What a gate is multiplied by."""
        return self.add("Sigmoid", gate)  # type: ignore[no-any-return]


def write_beside(folder: Path, decoder: DecoderDescription) -> None:
    """config.json and a tokenizer of as many tokens as the decoder has."""
    tokens = {f"t{number}": number for number in range(decoder.vocabulary)}
    tokenizer = {
        "model": {"type": "BPE", "vocab": tokens, "merges": []},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"max_position_embeddings": decoder.context_length, "rope_theta": decoder.layers[0].rope.base}
    (folder / "config.json").write_text(json.dumps(config))
