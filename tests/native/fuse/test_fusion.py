"""The plan of fused kernels: what becomes one kernel, and where tensors lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.graph.inference import infer
from bricolage.native.cpu.implicit_gemm import product
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.kernel_plan import FusionPlan, kernel_reads
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.module import generate
from tests.backends import regions
from tests.native.targets import FUSION, cpu_target


def planned(folder: Path, body: str, inputs: str, outputs: str, **constants: np.ndarray) -> FusionPlan:
    model = regions.region(folder, body, inputs, outputs, **constants).model
    infer(model)
    return plan(*lower_region(model), FUSION)


def kinds(found: FusionPlan) -> list[str]:
    return [kernel.kind for kernel in found.kernels]


def weights(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_a_convolution_absorbs_bias_residual_and_activation(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = Conv <pads = [1,1,1,1]> (x, w, b) \n c = Add (a, x) \n y = Relu (c)",
        "float[1, 8, 6, 6] x",
        "float[1, 8, 6, 6] y",
        w=weights(8, 8, 3, 3),
        b=weights(8),
    )
    assert kinds(found) == ["conv"]
    assert found.arena_bytes == 0


def test_two_roots_never_share_a_kernel_and_the_later_one_takes_the_sum(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = Conv (x, v) \n b = Conv (x, w) \n c = Add (a, b) \n y = Relu (c)",
        "float[1, 8, 6, 6] x",
        "float[1, 8, 6, 6] y",
        v=weights(8, 8, 1, 1),
        w=weights(8, 8, 1, 1),
    )
    assert kinds(found) == ["conv", "conv"]


def test_a_diamond_comes_together_in_the_epilogue(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = MatMul (x, w) \n e = Erf (a) \n o = Add (e, one) \n y = Mul (a, o)",
        "float[4, 16] x",
        "float[4, 16] y",
        w=weights(16, 16),
        one=np.float32(1),
    )
    assert kinds(found) == ["matmul"]


def test_a_tensor_that_leaves_is_stored_before_it_is_used_on(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = MatMul (x, w) \n y = Relu (a)",
        "float[4, 16] x",
        "float[4, 16] a, float[4, 16] y",
        w=weights(16, 16),
    )
    assert kinds(found) == ["matmul"]
    assert [node for node, _ in found.kernels[0].stores] == list(found.outputs), "both are stored by one kernel"


def test_what_element_wise_work_makes_of_a_stored_result_is_stored_beside_it(tmp_path: Path) -> None:
    """A residual stream, its ReLU for the convolution that follows, and a sum with what is there by then."""
    found = planned(
        tmp_path,
        """
        a = Conv (x, w)
        b = Relu (a)
        c = Conv (b, w)
        d = Add (c, a)
        e = Relu (d)
        f = Conv (e, w)
        y = Add (f, d)
        z = Mul (y, b)
        """,
        "float[1, 8, 6, 6] x",
        "float[1, 8, 6, 6] y, float[1, 8, 6, 6] z",
        w=weights(8, 8, 1, 1),
    )
    assert kinds(found) == ["conv", "conv", "conv"]
    assert [len(kernel.stores) for kernel in found.kernels] == [2, 2, 2]


def test_what_needs_a_later_tensor_is_a_kernel_of_its_own(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = MatMul (x, w) \n b = MatMul (x, v) \n c = MatMul (a, b) \n d = Add (a, b) \n y = MatMul (c, d) \n z = Relu (c)",
        "float[16, 16] x",
        "float[16, 16] y, float[16, 16] z, float[16, 16] a, float[16, 16] b",
        w=weights(16, 16),
        v=weights(16, 16),
    )
    assert [[node.shape for node, _ in kernel.stores] for kernel in found.kernels] == [
        [(16, 16)],
        [(16, 16)] * 2,
        [(16, 16)] * 2,
        [(16, 16)],
    ]


def test_heads_are_split_by_the_store(tmp_path: Path) -> None:
    """Projection, reshape and transposition are one kernel: the store takes the inverse of the views."""
    found = planned(
        tmp_path,
        """
        a = MatMul (x, w)
        r = Reshape (a, s)
        t = Transpose <perm = [0, 2, 1, 3]> (r)
        y = MatMul (t, k)
        """,
        "float[1, 6, 16] x, float[1, 2, 8, 6] k",
        "float[1, 2, 6, 6] y",
        w=weights(16, 16),
        s=np.int64([1, 6, 2, 8]),
    )
    assert kinds(found) == ["matmul", "matmul"]
    assert found.kernels[0].result.shape == (1, 2, 6, 8)


def test_parts_of_a_concatenation_are_stored_in_place(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = Conv (x, v) \n b = Conv (x, w) \n c = Concat <axis = 1> (a, b) \n y = Conv (c, u)",
        "float[1, 8, 6, 6] x",
        "float[1, 4, 6, 6] y",
        v=weights(8, 8, 1, 1),
        w=weights(16, 8, 1, 1),
        u=weights(4, 24, 1, 1),
    )
    assert kinds(found) == ["conv", "conv", "conv"]
    first, second, third = found.kernels
    assert first.target.storage == second.target.storage
    assert (first.target.offset, second.target.offset) == (0, 8), "channels last: eight channels further"
    assert [buffer.storage for buffer in kernel_reads(third, found)] == [first.target.storage]


def test_padding_along_short_dimensions_is_not_computed(tmp_path: Path) -> None:
    """Of three taps in depth, the ends of a clip of two frames see two."""
    found = planned(
        tmp_path,
        "a = Conv <pads = [1,1,1,1,1,1]> (x, w, b) \n y = Relu (a)",
        "float[1, 64, 2, 14, 14] x",
        "float[1, 64, 2, 14, 14] y",
        w=weights(64, 64, 3, 3, 3),
        b=weights(64),
    )
    assert kinds(found) == ["conv", "conv"]
    assert [kernel.root.sources[1].shape for kernel in found.kernels if kernel.root] == [(64, 64, 2, 3, 3)] * 2


def test_taps_of_a_large_dilation_that_fall_into_the_padding_are_not_computed(tmp_path: Path) -> None:
    """At a rate of 9 on 17 columns, the first 8 and the last 8 see two taps of three, the one between sees one. Along rows
    the tiles of the product leave them out."""
    found = planned(
        tmp_path,
        "a = Conv <pads = [9,9,9,9], dilations = [9,9]> (x, w, b) \n y = Relu (a)",
        "float[1, 256, 17, 17] x",
        "float[1, 256, 17, 17] y",
        w=weights(256, 256, 3, 3),
        b=weights(256),
    )
    sizes = [kernel.root.shape[2:] + kernel.root.sources[1].shape[2:] for kernel in found.kernels if kernel.root]
    assert sizes == [(17, 8, 3, 2), (17, 1, 3, 1), (17, 8, 3, 2)]
    assert kinds(found) == ["conv"] * 3, "what follows is done to each part"


def test_padding_is_computed_where_each_part_would_read_its_own_weights(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "y = Conv <pads = [2,2,2,2], dilations = [2,2]> (x, w)",
        "float[1, 512, 7, 7] x",
        "float[1, 512, 7, 7] y",
        w=weights(512, 512, 3, 3),
    )
    assert kinds(found) == ["conv"]


def test_a_row_of_taps_of_an_image_of_few_channels_is_a_run_of_memory(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "y = Conv <pads = [3,3,3,3], strides = [2,2]> (x, w)",
        "float[1, 3, 20, 30] x",
        "float[1, 16, 10, 15] y",
        w=weights(16, 3, 7, 7),
    )
    assert kinds(found) == ["elementwise", "conv"]
    assert found.kernels[0].result.shape == (20, 35, 3), "channels last, with its padding"
    form = product(found.kernels[1].root, 16)  # type: ignore[arg-type]
    assert form.runs == (7, 1, 21)


def test_channels_that_lie_apart_are_copied_before_a_window_moves_over_them(tmp_path: Path) -> None:
    """The values of attention, whose heads lie apart, as an image: CoaT divided for each product, and took half as long again."""
    body = """p = MatMul (x, m) \n h = Reshape (p, heads) \n t = Transpose <perm = [0, 2, 1, 3]> (h) \n e = Exp (t)
        v = Transpose <perm = [0, 1, 3, 2]> (t) \n i = Reshape (v, image)
        y = Conv <group = 32, pads = [1, 1, 1, 1]> (i, w)"""
    found = planned(
        tmp_path,
        body,
        "float[1, 30, 16] x",
        "float[1, 4, 30, 8] e, float[1, 32, 5, 6] y",
        m=weights(16, 32),
        heads=np.array([1, 30, 4, 8]),
        image=np.array([1, 32, 5, 6]),
        w=weights(32, 1, 3, 3),
    )
    assert kinds(found)[0] == "matmul" and kinds(found)[-2:] == ["elementwise", "conv"]
    copied, conv = found.kernels[-2:]
    assert copied.result.shape == (1, 32, 5, 6) and kernel_reads(conv, found)[0] == copied.target


def test_positions_that_follow_each_other_are_read_where_they_lie(tmp_path: Path) -> None:
    """Tokens as an image: beyond an edge nothing is read, so that nothing has to be divided for it."""
    found = planned(
        tmp_path,
        """s = Slice (x, one, end, one) \n t = Transpose <perm = [0, 2, 1]> (s) \n i = Reshape (t, image)
        y = Conv <group = 32, pads = [1, 1, 1, 1]> (i, w)""",
        "float[1, 31, 32] x",
        "float[1, 32, 5, 6] y",
        one=np.array([1]),
        end=np.array([31]),
        image=np.array([1, 32, 5, 6]),
        w=weights(32, 1, 3, 3),
    )
    assert kinds(found) == ["conv"]
    text = generate(found, cpu_target()).text
    kernel = text[text.index("/* conv") :]
    assert "%" not in kernel[kernel.index("taps") : kernel.index("\n}\n")].replace("o % 5", "")


def test_what_is_done_to_a_concatenation_is_done_to_its_parts(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        """
        a = Conv (x, v)
        b = Conv (a, v)
        c = Concat <axis = 1> (a, b)
        r = Relu (c)
        d = Conv (r, w)
        e = Conv (c, w)
        z = Add (e, d)
        """,
        "float[1, 8, 6, 6] x",
        "float[1, 4, 6, 6] z",
        v=weights(8, 8, 1, 1),
        w=weights(4, 16, 1, 1),
    )
    assert kinds(found) == ["conv", "conv", "conv", "conv"]
    assert [len(kernel.stores) for kernel in found.kernels] == [2, 2, 1, 1]


def test_phases_of_a_transposed_convolution_are_stored_interleaved(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        "a = ConvTranspose <strides = [2,2], pads = [1,1,1,1]> (x, w) \n y = Relu (a)",
        "float[1, 8, 4, 4] x",
        "float[1, 16, 8, 8] y",
        w=weights(8, 16, 4, 4),
    )
    assert kinds(found) == ["conv"] * 4
    assert sorted(kernel.target.offset for kernel in found.kernels) == [0, 1, 8, 9]


@pytest.mark.parametrize("parallel", [False, True])
def test_threads_meet_only_where_something_depends(tmp_path: Path, parallel: bool) -> None:
    source = "x" if parallel else "a"
    found = planned(
        tmp_path,
        f"a = MatMul (x, v) \n b = MatMul ({source}, w)",
        "float[4, 16] x",
        "float[4, 16] a, float[4, 16] b",
        v=weights(16, 16),
        w=weights(16, 16),
    )
    text = generate(found, cpu_target()).text
    region = text[text.index("static void region(") :]
    assert region[: region.index("\n}")].count("meet(") == (0 if parallel else 1)


def test_kernels_that_do_the_same_share_a_function(tmp_path: Path) -> None:
    """The three products differ in memory and weights only; the one that adds x is another function."""
    found = planned(
        tmp_path,
        "a = MatMul (x, u) \n b = MatMul (a, v) \n c = MatMul (b, u) \n d = MatMul (c, v) \n y = Add (d, x)",
        "float[64, 64] x",
        "float[64, 64] y",
        u=weights(64, 64),
        v=weights(64, 64),
    )
    text = generate(found, cpu_target()).text
    assert text.count("static __attribute__((noinline)) void matmul_") == 2
    assert [text.count(f"/* kernel_{i} */") for i in range(5)] == [1, 1, 1, 1, 0]


def test_memory_is_used_again_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    chain = ["a = MatMul (x, w)", *(f"{b} = MatMul ({a}, w)" for a, b in zip("abcdef", "bcdefg", strict=True))]
    found = planned(tmp_path, " \n ".join(chain), "float[64, 64] x", "float[64, 64] g", w=weights(64, 64))
    one = 64 * 64 * 4 + 64
    assert one < found.arena_bytes <= 2 * one + 256, "two tensors live at a time, however long the chain"
