"""Operators of `com.microsoft`: the float64 semantics beside what ONNX Runtime computes of the same node, without optimisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ValueInfoProto, helper

from bricolage.graph.graph import describe
from bricolage.graph.inference import infer
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import Evaluator
from tests.lowering.runtime import SHARED

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One node: inputs (None where one is left out), attributes, and how many outputs."""

    op_type: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = "com.microsoft"
    kept: tuple[int, ...] | None = None
    """Outputs that are compared, where not all are."""
    floats: bool = False
    """Whether the model states that its outputs are floats, which ONNX Runtime cannot always find out."""

    def __str__(self) -> str:
        return self.op_type


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def f32(*shape: int, seed: int = 0) -> Array:
    return np.asarray(rng(seed, *shape).standard_normal(shape), np.float32)


def u8(*shape: int, seed: int = 0) -> Array:
    return np.asarray(rng(seed, *shape).integers(0, 256, shape), np.uint8)


def i8(*shape: int, seed: int = 0, edge: int = 128) -> Array:
    return np.asarray(rng(seed, *shape).integers(-edge, edge, shape), np.int8)


def one(value: float, kind: type = np.float32) -> Array:
    return np.asarray(value, kind)


def model_of(case: Case) -> tuple[ir.Model, dict[str, Array]]:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(case.inputs)]
    feeds = {name: x for name, x in zip(names, case.inputs, strict=True) if x is not None}
    outputs = [f"y{i}" if case.kept is None or i in case.kept else "" for i in range(case.outputs)]
    graph = helper.make_graph(
        [helper.make_node(case.op_type, names, outputs, domain=case.domain, **case.attributes)],
        "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()],
        [helper.make_tensor_value_info(n, 1, None) if case.floats else ValueInfoProto(name=n) for n in outputs if n],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=9)), feeds


def both(case: Case) -> tuple[list[Any], list[Any]]:
    """Outputs by ONNX Runtime, and by the reference."""
    model, feeds = model_of(case)
    evaluator = Evaluator(model)
    assert [stretch.together for stretch in evaluator._stretches] == [True]  # the lowering claims it
    found = evaluator(feeds)
    assert [stretch.together for stretch in evaluator._stretches] == [True]  # ... and has computed it
    names = [value.name or "" for value in model.graph.outputs]
    return SHARED.run(ir.to_proto(model).SerializeToString(), feeds, names), [found[name] for name in names]


def check(case: Case, apart: float = 0.0) -> None:
    """`apart`: the fraction of integers that may be off by one. Shapes and types are inferred besides."""
    model, _ = model_of(case)
    infer(model)
    for value, y, r in zip(model.graph.outputs, *both(case), strict=True):
        info = describe(value)
        assert y.shape == r.shape and info.dtype is not None and info.numpy == y.dtype
        assert info.shape is not None and len(info.shape) == y.ndim
        sizes = zip(info.shape, y.shape, strict=True)
        assert all(size == found or (case.op_type == "GroupQueryAttention" and size == "?") for size, found in sizes)
        if case.op_type == "DynamicQuantizeLinear":
            assert np.array_equal(y, r)
        elif y.dtype.kind == "f":
            assert r.dtype == np.float64 and relative_error([y], [r]) < 3e-6
        else:
            assert y.dtype == r.dtype
            difference = np.abs(y.astype(np.int64) - r.astype(np.int64))
            assert difference.max(initial=0) <= (1 if apart else 0) and np.mean(difference != 0) <= apart


def cases(*made: Case) -> Any:
    return pytest.mark.parametrize("case", made, ids=[f"{i}-{case.op_type}" for i, case in enumerate(made)])


@cases(
    Case("Gelu", [f32(3, 5)]),
    Case("BiasGelu", [f32(3, 5), f32(5, seed=1)]),
    Case("FastGelu", [f32(2, 3, 5)]),
    Case("FastGelu", [f32(3, 5), f32(5, seed=1)]),
    Case("QuickGelu", [f32(3, 5)]),
    Case("QuickGelu", [f32(3, 5)], {"alpha": 0.7}),
    Case("FusedMatMul", [f32(3, 4), f32(4, 5)]),
    Case("FusedMatMul", [f32(2, 4, 3), f32(2, 5, 4)], {"alpha": 0.5, "transA": 1, "transB": 1}),
    Case("FusedMatMul", [f32(3, 2, 4), f32(2, 4, 5)], {"transBatchA": 1}),
    Case("FusedMatMul", [f32(2, 4, 5), f32(5, 2, 6)], {"transBatchB": 1}),
    Case("TransposeMatMul", [f32(4, 3), f32(4, 5)], {"transA": 1, "alpha": 2.0}),
    Case("FusedGemm", [f32(3, 4), f32(4, 5), f32(5, seed=2)], {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
    Case("FusedGemm", [f32(3, 4), f32(5, 4)], {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1}),
    Case("FusedGemm", [f32(3, 4), f32(4, 5), f32(3, 5, seed=2)], {"activation": "Tanh"}),
    Case("FusedConv", [f32(1, 2, 5, 5), f32(3, 2, 3, 3), f32(3)], {"activation": "Relu", "pads": [1] * 4}),
    Case("FusedConv", [f32(1, 2, 5, 5), f32(3, 2, 3, 3), f32(3), f32(1, 3, 3, 3)], {"activation": "Relu"}),
    Case(
        "FusedConv",
        [f32(1, 2, 6, 5), f32(4, 1, 3, 3)],
        {"activation": "Clip", "activation_params": [-0.5, 1.0], "group": 2, "strides": [2, 1]},
    ),
    Case(
        "FusedConv",
        [f32(1, 2, 5, 5), f32(3, 2, 1, 1)],
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
    Case("FusedConv", [f32(1, 2, 5, 5), f32(3, 2, 1, 1)], {"activation": "LeakyRelu", "activation_params": [0.2]}),
)
def test_products_and_activations(case: Case) -> None:
    check(case)


def n_bits(bits: int, k: int, n: int, block: int, zero: str = "", bias: bool = False, rank: int = 2) -> Case:
    blocks = -(-k // block)
    weights = u8(n, blocks, block * bits // 8, seed=1)
    scales = np.abs(f32(n, blocks, seed=2)) + np.float32(0.1)
    zeros = {"": None, "packed": u8(n, -(-blocks * bits // 8), seed=3), "float": f32(n, blocks, seed=4) + 8}[zero]
    a = f32(*[3] * (rank - 1), k)
    inputs = [a, weights, scales, zeros, None, f32(n, seed=5) if bias else None]
    while inputs[-1] is None:
        inputs.pop()
    return Case("MatMulNBits", inputs, {"K": k, "N": n, "bits": bits, "block_size": block})


@cases(
    n_bits(4, 64, 5, 32),
    n_bits(4, 64, 5, 16, "packed"),
    n_bits(4, 96, 5, 32, "packed", bias=True),
    n_bits(4, 64, 5, 32, "float"),
    n_bits(4, 40, 3, 16, "packed", rank=3),
    n_bits(8, 64, 5, 32),
    n_bits(8, 64, 5, 16, "packed"),
    n_bits(4, 512, 4, 256, "packed"),
)
def test_weights_of_few_bits(case: Case) -> None:
    check(case)


X, GAMMA, BETA = f32(2, 3, 8), f32(8, seed=1), f32(8, seed=2)
IDS = np.asarray(rng(1).integers(0, 10, (2, 4)), np.int32)


@cases(
    Case("SkipLayerNormalization", [X, f32(2, 3, 8, seed=3), GAMMA]),
    Case("SkipLayerNormalization", [X, f32(2, 3, 8, seed=3), GAMMA, BETA, f32(8, seed=4)], {"epsilon": 1e-3}),
    Case("SkipLayerNormalization", [X, f32(3, 8), GAMMA, BETA], outputs=4, kept=(0, 3)),
    Case("SkipLayerNormalization", [X, f32(1, 3, 8), GAMMA, None, BETA]),
    Case("SkipSimplifiedLayerNormalization", [X, f32(2, 3, 8, seed=3), GAMMA], {"epsilon": 1e-6}),
    Case("SkipSimplifiedLayerNormalization", [X, f32(2, 3, 8, seed=3), GAMMA, BETA], outputs=4, kept=(0, 3)),
    Case("SimplifiedLayerNormalization", [X, GAMMA], {"axis": -1, "epsilon": 1e-6}, domain=""),
    Case("SimplifiedLayerNormalization", [X, f32(3, 8)], {"axis": 1}, domain=""),
    Case("EmbedLayerNormalization", [IDS, IDS % 2, f32(10, 8), f32(6, 8), f32(2, 8), GAMMA, BETA], outputs=2),
    Case(
        "EmbedLayerNormalization",
        [IDS, IDS % 2, f32(10, 8), f32(6, 8), f32(2, 8), GAMMA, BETA, np.int32([[1, 1, 1, 0], [1, 1, 0, 0]])],
        {"epsilon": 1e-3},
        outputs=3,
    ),
    Case(
        "EmbedLayerNormalization",
        [IDS, None, f32(10, 8), f32(6, 8), None, GAMMA, BETA, None, np.int32([[3, 2, 1, 0]] * 2)],
        outputs=2,
    ),
)
def test_normalisations(case: Case) -> None:
    check(case)


Q, K, V = f32(2, 3, 8), f32(2, 5, 8, seed=1), f32(2, 5, 8, seed=2)
PAST = f32(2, 2, 4, 4, seed=3), f32(2, 2, 4, 4, seed=4)
QKV, QKV_BIAS = f32(6, 24, seed=5), f32(24, seed=6)
HIDDEN = f32(2, 3, 6, seed=7)
COS, SIN = np.cos(f32(10, 4)), np.sin(f32(10, 4))
WIDE_COS, WIDE_SIN = np.cos(f32(10, 8)), np.sin(f32(10, 8))


@cases(
    Case("MultiHeadAttention", [Q, K, V], {"num_heads": 2}),
    Case("MultiHeadAttention", [Q, K, V, QKV_BIAS], {"num_heads": 2, "scale": 0.3}),
    Case("MultiHeadAttention", [Q, K, f32(2, 5, 4)], {"num_heads": 2}),
    Case("MultiHeadAttention", [Q, K, V, None, np.int32([3, 5])], {"num_heads": 2}),
    Case("MultiHeadAttention", [Q, K, V, None, np.int32([[1, 1, 0, 1, 0]] * 2)], {"num_heads": 2}),
    Case(
        "MultiHeadAttention", [Q, K, V, None, np.asarray(rng(2).integers(0, 2, (2, 3, 5)), np.int32)], {"num_heads": 2}
    ),
    Case("MultiHeadAttention", [Q, K, V, None, None, f32(1, 2, 3, 5)], {"num_heads": 2}),
    Case("MultiHeadAttention", [Q, f32(2, 3, 8), f32(2, 3, 8, seed=9)], {"num_heads": 2, "unidirectional": 1}),
    Case("MultiHeadAttention", [Q, K, V, QKV_BIAS, None, None, *PAST], {"num_heads": 2}, outputs=3),
    Case(
        "MultiHeadAttention",
        [Q, f32(2, 3, 8), Q, None, None, None, *PAST],
        {"num_heads": 2, "unidirectional": 1},
        outputs=3,
    ),
    Case("MultiHeadAttention", [Q, f32(2, 2, 5, 4), f32(2, 2, 5, 4, seed=1)], {"num_heads": 2}),
    Case("MultiHeadAttention", [Q, K, V], {"num_heads": 2}, outputs=4, kept=(0, 3), floats=True),
    Case("Attention", [HIDDEN, QKV, QKV_BIAS], {"num_heads": 2}),
    Case("Attention", [HIDDEN, QKV, QKV_BIAS], {"num_heads": 2, "unidirectional": 1, "scale": 0.2}),
    Case("Attention", [HIDDEN, QKV, QKV_BIAS, np.int32([2, 3])], {"num_heads": 4}),
    Case("Attention", [HIDDEN, QKV, QKV_BIAS, np.int32([2, 3, 0, 1])], {"num_heads": 4}),
    Case("Attention", [HIDDEN, QKV, QKV_BIAS, np.int32([[1, 0, 1]] * 2)], {"num_heads": 4, "mask_filter_value": -3.0}),
    Case(
        "Attention", [HIDDEN, QKV, QKV_BIAS, None, f32(2, 2, 2, 4, 4)], {"num_heads": 2, "unidirectional": 1}, outputs=2
    ),
    Case("Attention", [HIDDEN, QKV, QKV_BIAS, None, None, f32(2, 2, 3, 3)], {"num_heads": 2}),
    Case("Attention", [HIDDEN, f32(6, 20), f32(20)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
    Case("RotaryEmbedding", [f32(2, 3, 16), np.int64([2]), COS, SIN]),
    Case("RotaryEmbedding", [f32(2, 3, 16), np.int64([[0, 1, 2], [5, 6, 7]]), COS, SIN], {"interleaved": 1}),
    Case("RotaryEmbedding", [f32(2, 2, 3, 8), np.int64([1]), COS, SIN]),
    Case(
        "RotaryEmbedding",
        [f32(2, 3, 20), np.int64([1]), COS[:, :3], SIN[:, :3]],
        {"num_heads": 2, "rotary_embedding_dim": 6},
    ),
)
def test_attention(case: Case) -> None:
    check(case)


def grouped(length: int, before: Sequence[int], *, capacity: int = 0, packed: bool = False, **attributes: Any) -> Case:
    """`before`: words in the cache by row; `capacity` of the cache, where it is longer than that."""
    batch, heads, groups, size = len(before), 4, 2, 16
    parts = [f32(batch, length, n * size, seed=i) for i, n in enumerate((heads, groups, groups))]
    total = max(before) + length
    past = [f32(batch, groups, capacity or max(before), size, seed=i) for i in (7, 8)] if max(before) else [None, None]
    qkv = [np.concatenate(parts, 2), None, None] if packed else parts
    extra = attributes.pop("extra", [])
    rotary = [WIDE_COS, WIDE_SIN] if attributes.get("do_rotary") else [None, None]
    ends = np.int32([one + length - 1 for one in before])
    inputs = [*qkv, *past, ends, one(total, np.int32), *rotary, *extra]
    while inputs[-1] is None:
        inputs.pop()
    return Case("GroupQueryAttention", inputs, {"num_heads": heads, "kv_num_heads": groups, **attributes}, outputs=3)


@cases(
    grouped(3, [0, 0]),
    grouped(3, [0, 0], packed=True, do_rotary=1),
    grouped(3, [0, 0], do_rotary=1, rotary_interleaved=1, scale=0.3),
    grouped(1, [4, 4]),
    grouped(1, [4, 2], do_rotary=1),
    grouped(1, [4, 4], capacity=8, do_rotary=1),
    grouped(2, [4], do_rotary=1),
    grouped(5, [0], local_window_size=2),
    grouped(1, [4, 4], local_window_size=2),
    grouped(3, [0, 0], softcap=0.5),
    grouped(3, [0, 0], smooth_softmax=1),
    grouped(3, [0, 0], extra=[None, f32(1, 4, 3, 3)]),
    grouped(3, [0, 0], extra=[None, f32(1, 4, 3, 3)], softcap=0.5),
    grouped(3, [0, 0], extra=[None, None, f32(4)]),
    grouped(3, [0, 0], extra=[np.int64([[3, 4, 5], [0, 1, 2]])], do_rotary=1),
)
def test_grouped_attention(case: Case) -> None:
    check(case)


S, T, W = one(0.02), one(0.03), one(0.05)
Z = one(120, np.uint8)
IZ = one(-3, np.int8)


@cases(
    Case("QuantizeLinear", [3 * f32(4, 50), S, Z]),
    Case("QuantizeLinear", [3 * f32(4, 50), np.abs(f32(4)) + 0.01, i8(4)], {"axis": 0}),
    Case("DequantizeLinear", [u8(4, 50), S, Z]),
    Case("DequantizeLinear", [i8(4, 50), np.abs(f32(50)) + 0.01, i8(50)], {"axis": 1}),
    Case("QLinearAdd", [u8(4, 50), S, Z, u8(50, seed=1), T, one(99, np.uint8), W, Z]),
    Case("QLinearAdd", [i8(4, 50), S, IZ, i8(4, 1, seed=1), T, IZ, W, IZ]),
    Case("QLinearMul", [u8(4, 50), S, Z, u8(4, 50, seed=1), T, one(99, np.uint8), W, Z]),
    Case("QLinearMul", [i8(4, 50), S, IZ, i8(50, seed=1), T, IZ, W, IZ]),
    Case("QLinearSigmoid", [u8(4, 50), S, Z, one(1 / 256), one(0, np.uint8)]),
    Case("QLinearSigmoid", [i8(4, 50), S, IZ, one(1 / 256), IZ]),
    Case("QLinearLeakyRelu", [u8(4, 50), S, Z, T, Z], {"alpha": 0.1}),
    Case("QLinearLeakyRelu", [i8(4, 50), S, IZ, T, IZ]),
    Case("QLinearConcat", [W, Z, u8(2, 9), S, Z, u8(3, 9, seed=1), W, one(9, np.uint8)], {"axis": 0}),
    Case("QLinearWhere", [u8(4, 50) > 99, u8(4, 50), S, Z, u8(50, seed=1), T, one(99, np.uint8), W, Z]),
    Case("QLinearAveragePool", [u8(1, 3, 7, 7), S, Z, T, Z], {"kernel_shape": [3, 3], "strides": [2, 2]}),
    Case("QLinearAveragePool", [u8(1, 3, 7, 7), S, Z, T, Z], {"kernel_shape": [3, 3], "pads": [1] * 4}),
    Case(
        "QLinearAveragePool",
        [u8(1, 7, 6, 3), S, Z, T, Z],
        {"kernel_shape": [2, 2], "channels_last": 1, "ceil_mode": 1, "strides": [2, 2]},
    ),
    Case(
        "QLinearAveragePool",
        [i8(1, 3, 7, 7), S, IZ, T, IZ],
        {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
    ),
    Case("QLinearGlobalAveragePool", [u8(2, 3, 5, 5), S, Z, T, Z]),
    Case("QLinearGlobalAveragePool", [i8(2, 5, 5, 3), S, IZ, T, IZ], {"channels_last": 1}),
    Case(
        "QLinearConv", [u8(1, 5, 5, 3), S, Z, i8(4, 3, 3, 3, edge=64), T, one(0, np.int8), W, Z], {"channels_last": 1}
    ),
    Case("QGemm", [u8(3, 6), S, Z, i8(6, 5, edge=64), T, IZ]),
    Case("QGemm", [u8(3, 6), S, Z, i8(5, 6, edge=64), T, IZ, np.int32(1000 * f32(5))], {"transB": 1, "alpha": 0.5}),
    Case(
        "QGemm", [u8(3, 6), S, Z, i8(6, 5, edge=64), np.abs(f32(5)), np.zeros(5, np.int8), np.int32(99 * f32(5)), W, Z]
    ),
)
def test_integers_with_scales(case: Case) -> None:
    check(case, apart=0.02)


@cases(
    Case("QuantizeLinear", [3 * f32(40, 500), S, Z], domain=""),
    Case("QuantizeLinear", [np.float32(0.5 * S * np.arange(-300, 300)), S, IZ], domain=""),  # ties
    Case("DynamicQuantizeLinear", [3 * f32(40, 500)], domain="", outputs=3),
    Case("QLinearConv", [u8(1, 8, 40, 40), S, Z, i8(16, 8, 3, 3, edge=64), T, one(0, np.int8), one(0.9), Z], domain=""),
    Case(
        "QLinearConv",
        [
            u8(1, 8, 40, 40),
            S,
            Z,
            i8(16, 4, 3, 3, edge=64),
            np.abs(f32(16)),
            np.zeros(16, np.int8),
            one(9),
            Z,
            np.int32(999 * f32(16)),
        ],
        {"group": 2, "strides": [2, 2]},
        domain="",
    ),
    Case("QLinearMatMul", [u8(100, 64), S, Z, u8(64, 100), T, Z, one(0.9), Z], domain=""),
    Case("MatMulInteger", [u8(30, 64), u8(64, 20), one(3, np.uint8), one(250, np.uint8)], domain=""),
    Case("ConvInteger", [u8(1, 3, 9, 9), u8(4, 3, 3, 3), one(3, np.uint8)], {"pads": [1] * 4}, domain=""),
)
def test_onnx_own_integers_are_the_same_to_the_last(case: Case) -> None:
    """Also where a quotient is near a tie, or at one: ONNX says in which type it is rounded. Weights have 7 bits: without VNNI,
    ONNX Runtime's convolution sums pairs of products in int16, and saturates with 8."""
    check(case)


@cases(
    Case("QLinearSoftmax", [u8(4, 50), S, Z, one(1 / 256), one(0, np.uint8)], {"opset": 13, "axis": -1}),
    Case("QLinearSoftmax", [i8(2, 3, 9), one(0.05), IZ, one(1 / 256), one(-128, np.int8)], {"opset": 13, "axis": 1}),
    Case("QLinearSoftmax", [u8(2, 3, 9), one(0.05), Z, one(1 / 256), one(0, np.uint8)], {"opset": 12, "axis": 1}),
)
def test_a_softmax_of_integers_is_within_one(case: Case) -> None:
    """ONNX Runtime sums up exponentials that are integers."""
    check(case, apart=1.0)


@cases(
    Case("MatMulIntegerToFloat", [u8(3, 6), i8(6, 5, edge=64), S, T]),
    Case("MatMulIntegerToFloat", [u8(2, 3, 6), i8(6, 5, edge=64), S, np.abs(f32(5)), Z, i8(5), f32(5)]),
    Case("DynamicQuantizeMatMul", [f32(3, 6), i8(6, 5, edge=64), S]),
    Case("DynamicQuantizeMatMul", [f32(2, 3, 6), i8(6, 5, edge=64), np.abs(f32(5)), i8(5), f32(5)]),
    Case("DynamicQuantizeMatMul", [f32(3, 6), u8(6, 5) // 2, S, one(7, np.uint8)]),
    Case("QAttention", [u8(2, 3, 6), i8(6, 24, edge=64), f32(24), S, S], {"num_heads": 2}),
    Case(
        "QAttention",
        [u8(2, 3, 6), i8(6, 24, edge=64), f32(24), S, np.abs(f32(24)) * one(0.02), np.int32([2, 3]), Z, i8(24)],
        {"num_heads": 2, "unidirectional": 1},
    ),
)
def test_integer_products_as_floats(case: Case) -> None:
    check(case)


def quantised_lstm(direction: str = "forward", batch: int = 1, per_channel: bool = False, **attributes: Any) -> Case:
    ways, hidden, width = 2 if direction == "bidirectional" else 1, 5, 4
    scale = np.abs(f32(ways, *[4 * hidden] * per_channel)) * one(0.01) + one(0.01)
    zero = np.zeros(scale.shape, np.int8)
    weights = [i8(ways, n, 4 * hidden, edge=64, seed=n) for n in (width, hidden)]
    given: list[Array | None] = [f32(6, batch, width), *weights, f32(ways, 8 * hidden), None]
    states = [f32(ways, batch, hidden, seed=3) * one(0.1), f32(ways, batch, hidden, seed=4)]
    peepholes = f32(ways, 3 * hidden, seed=5)
    inputs = [*given, *states, peepholes, scale, zero, scale, zero]
    return Case("DynamicQuantizeLSTM", inputs, {"hidden_size": hidden, "direction": direction, **attributes}, outputs=3)


@cases(
    quantised_lstm(),
    quantised_lstm(batch=3),
    quantised_lstm("bidirectional", batch=2, per_channel=True),
    quantised_lstm("reverse", per_channel=True, clip=0.5),
    quantised_lstm(input_forget=1, activations=["HardSigmoid", "Tanh", "Softsign"]),
)
def test_a_quantised_lstm(case: Case) -> None:
    check(case)


@cases(
    Case("GatherBlockQuantized", [u8(7, 32), np.int64([[6, 0], [-1, 3]]), f32(7, 2)], {"block_size": 32}),
    Case(
        "GatherBlockQuantized",
        [u8(7, 3, 16), np.int32([2]), f32(7, 3, 2), u8(7, 3, 1)],
        {"block_size": 16, "quantize_axis": 2},
    ),
    Case("GatherBlockQuantized", [u8(7, 40), np.asarray(2), f32(7, 3), u8(7, 3)], {"block_size": 16, "bits": 8}),
    Case("GatherBlockQuantized", [u8(7, 40), np.int64([2]), f32(7, 3)], {"block_size": 16, "bits": 8}),
    Case("Inverse", [f32(2, 4, 4) + 3 * np.eye(4, dtype=np.float32)]),
    Case("Inverse", [f32(3, 3)]),
    Case("CDist", [f32(5, 3), f32(4, 3, seed=1)], {"metric": "euclidean"}),
    Case("CDist", [f32(5, 3), f32(4, 3, seed=1)], {"metric": "sqeuclidean"}),
)
def test_blocks_inverses_and_distances(case: Case) -> None:
    check(case)


def test_operators_without_a_kernel_on_the_processor() -> None:
    """Compared with their formulas."""

    def evaluated(case: Case) -> Array:
        model, feeds = model_of(case)
        return np.asarray(Evaluator(model)(feeds)["y0"])

    x, bias, skip = f32(2, 4, 6), f32(6), f32(2, 4, 6, seed=1)
    np.testing.assert_allclose(evaluated(Case("BiasAdd", [x, bias, skip])), x.astype(float) + bias + skip, rtol=1e-12)
    left, right = np.split(x.astype(float) + bias, 2, 2)
    gelu = right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))
    np.testing.assert_allclose(evaluated(Case("BiasSplitGelu", [x, bias])), left * gelu, rtol=1e-12)
    image = f32(2, 3, 3, 4)
    for last in (0, 1):
        given = image if last else np.moveaxis(image, 3, 1)
        case = Case("GroupNorm", [given, f32(4), f32(4, seed=1)], {"groups": 2, "activation": 1, "channels_last": last})
        groups = image.astype(float).reshape(2, 9, 2, 2)
        centred = groups - groups.mean((1, 3), keepdims=True)
        y = (centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + np.float32(1e-5))).reshape(image.shape)
        y = y * f32(4) + f32(4, seed=1)
        y = y / (1 + np.exp(-y))
        np.testing.assert_allclose(evaluated(case), y if last else np.moveaxis(y, 3, 1), rtol=1e-10)
    w = f32(5, 4, 3, 3)
    nhwc = evaluated(Case("NhwcConv", [image, w, f32(5)], {"pads": [1] * 4}))
    nchw = evaluated(Case("Conv", [np.moveaxis(image, 3, 1), w, f32(5)], {"pads": [1] * 4}, domain=""))
    np.testing.assert_allclose(nhwc, np.moveaxis(nchw, 1, 3), rtol=1e-12)
