"""ONNX Runtime."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Call
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.graph import Graph
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.verify.models import make

BACKEND = registry.get("onnxruntime")


def test_strings_run(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = StringConcat (x, z)", "string[2] x, string[2] z", "string[2] y", opset=20)
    kernel = BACKEND.compile(model, regions.F32, regions.ONE_THREAD)
    (found,) = kernel.run([np.array(["a", "b"], object), np.array(["c", "d"], object)])
    assert np.asarray(found).tolist() == ["ac", "bd"]


def test_sequences_run(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = SequenceAt (s, i)", "seq(float[2]) s, int64 i", "float[2] y")
    kernel = BACKEND.compile(model, regions.F32, regions.ONE_THREAD)
    (found,) = kernel.run([[np.float32([1, 2]), np.float32([3, 4])], np.int64(1)])
    assert np.asarray(found).tolist() == [3, 4]


def test_it_runs_contributed_operators(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = com.microsoft.QuickGelu (x)", domains=', "com.microsoft" : 1')
    x = np.float32([-1, 0, 1, 2])
    expected = x / (1 + np.exp(-1.702 * x))
    assert np.allclose(regions.answer(BACKEND, model, x)[0], expected, rtol=1e-5)


def test_alone_and_with_others_give_the_same_answer(tmp_path: Path) -> None:
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    answers = []
    for alone in (True, False):
        (y,) = regions.answer(BACKEND, model, x, resources=Resources(threads=2, alone=alone))
        answers.append(y)
    assert np.array_equal(*answers)


def padded_pool(folder: Path, pool: str, pad: int) -> RegionModel:
    size = 1 + 2 * pad
    return regions.region(
        folder,
        f"a = Pad (x, p) y = {pool} <kernel_shape = [3, 3]> (a)",
        "float[1,1,3,3] x",
        f"float[1,1,{size},{size}] y",
        p=np.int64([0, 0, pad, pad, 0, 0, pad, pad]),
    )


@pytest.mark.parametrize(("pool", "pad"), [("MaxPool", 1), ("MaxPool", 3), ("AveragePool", 1)])
def test_a_pad_before_a_pool_pads_with_zeros(pool: str, pad: int, tmp_path: Path) -> None:
    """1.31.1 merges the two: it then pads with -infinity, or makes no session at all."""
    model, x = padded_pool(tmp_path, pool, pad), np.full((1, 1, 3, 3), -1, np.float32)
    assert regions.error(regions.answer(BACKEND, model, x), regions.reference(model, x)) < 1e-6


def test_what_its_optimisations_refuse_runs_without_them_under_another_name(tmp_path: Path) -> None:
    model, x = padded_pool(tmp_path, "AveragePool", 3), np.full((1, 1, 3, 3), -1, np.float32)
    without = BACKEND.unoptimised(regions.F32)
    assert without == KernelConfig("f32-unoptimised") and BACKEND.optimiser_refuses
    try:
        BACKEND.compile(model, regions.F32, regions.ONE_THREAD)
    except Refused as error:
        assert "Pad should be smaller than kernel" in str(error)
    else:
        pytest.skip("this version merges the pad rightly")
    found = regions.answer(BACKEND, model, x, config=without)
    assert regions.error(found, regions.reference(model, x)) < 1e-6


def test_where_a_graph_branches_operators_run_side_by_side(tmp_path: Path) -> None:
    parallel, two = KernelConfig("f32-parallel"), Resources(threads=2, alone=True)
    assert parallel in BACKEND.configs("highest", host()) or host().threads < 2
    model, x = regions.attention_block(tmp_path), regions.noise(1, 16, 32)
    found = regions.answer(BACKEND, model, x, config=parallel, resources=two)
    assert regions.error(found, regions.reference(model, x)) < 1e-6
    with pytest.raises(Refused, match="same time"):
        BACKEND.compile(model, parallel, regions.ONE_THREAD)
    chain = regions.region(
        tmp_path, "a=MatMul(x,w) y=MatMul(a,w)", "float[4,8] x", "float[4,8] y", w=regions.noise(8, 8)
    )
    with pytest.raises(Refused, match="same time"):
        BACKEND.compile(chain, parallel, two)


def blocks(folder: Path, level: int) -> RegionModel:
    """A product with weights in blocks of bytes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node(
            "MatMulNBits",
            ["x", "w", "s"],
            ["y"],
            "",
            "",
            "com.microsoft",
            K=64,
            N=16,
            bits=8,
            block_size=32,
            accuracy_level=level,
        )
    ]
    constants = {
        "w": rng.integers(0, 256, (16, 2, 32)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.02, (16, 2)).astype(np.float32),
    }
    model = make(nodes, {"x": (TensorProto.FLOAT, [3, 64])}, {"y": (TensorProto.FLOAT, [3, 16])}, constants)
    path = folder / f"blocks-{level}.onnx"
    ir.save(model, path)
    return RegionModel(path)


def test_products_with_blocks_multiply_bytes_at_low_alone(tmp_path: Path) -> None:
    config, region = KernelConfig("int8-blocks"), blocks(tmp_path, 0)
    assert config in BACKEND.configs("low", host()) and config not in BACKEND.configs("medium", host())
    assert BACKEND.suits(config, Graph(region.model).everything)
    x = regions.noise(3, 64)
    wide, bytes_ = (regions.answer(BACKEND, region, x, config=one) for one in (KernelConfig("f32"), config))
    assert 0.0 < regions.error(bytes_, wide) < 0.1, "coarser, and not wrong"
    assert [path.name for path in tmp_path.iterdir()] == ["blocks-0.onnx"], "no file is left"
    already = blocks(tmp_path, 4)
    assert not BACKEND.suits(config, Graph(already.model).everything)
    with pytest.raises(Refused, match="no products with blocks"):
        BACKEND.compile(already, config, regions.ONE_THREAD)


def test_bytes_are_widened_where_no_instruction_sums_them(tmp_path: Path) -> None:
    config, device = KernelConfig("f32-exact-bytes"), host()
    plain = replace(device, instructions=frozenset({"avx2"}))
    assert config in BACKEND.configs("highest", plain)
    assert config not in BACKEND.configs("highest", replace(device, instructions=frozenset({"avx2", "avx_vnni"})))
    constants = {"s": np.float32(0.01), "z": np.uint8(128), "w": np.full((32, 8), 127, np.int8), "t": np.float32(0.01)}
    text = "a=QuantizeLinear(x,s,z) b=DequantizeLinear(a,s,z) c=DequantizeLinear(w,t) y=MatMul(b,c)"
    region = regions.region(tmp_path, text, "float[4,32] x", "float[4,8] y", opset=21, **constants)
    assert BACKEND.suits(config, Graph(region.model).everything)
    x = np.full((4, 32), 1.27, np.float32)
    found = regions.answer(BACKEND, region, x, config=config)
    assert regions.error(found, regions.reference(region, x)) < 1e-6, "all 255 times all 127"
    other = regions.region(tmp_path, "y=MatMul(x,w)", "float[4,32] x", "float[4,8] y", w=regions.noise(32, 8))
    assert not BACKEND.suits(config, Graph(other.model).everything)


def test_a_call_on_random_inputs_keeps_the_arrays_that_it_knows_by_their_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = BACKEND.compile(model := regions.region(tmp_path, "y = Relu (x)"), regions.F32, regions.ONE_THREAD)
    bind, arrays = kernel.bind, list[weakref.ref[np.ndarray]]()

    def bind_watched(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
        arrays.extend(map(weakref.ref, (*inputs, *outputs)))
        return bind(inputs, outputs)

    monkeypatch.setattr(kernel, "bind", bind_watched)
    call = on_random_inputs(kernel, model)[0]
    assert len(arrays) == 2 and all(array() is not None for array in arrays)
    del call
    gc.collect()
    assert all(array() is None for array in arrays), "nothing else keeps them"
