"""From a region to a library in a folder: plan, C, compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bricolage.base import sealed
from bricolage.base.cache import discard
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.graph.region_model import RegionModel
from bricolage.native.c import define
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.channels_last import Layout
from bricolage.native.fuse.fusion import operators_apart, plan
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.fuse.slice_pairs import in_slices
from bricolage.native.fuse.strands import divide_batch, in_strands
from bricolage.native.fuse.waves import in_waves
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.lowerings import NoLowering
from bricolage.native.ir.lowerings.lowering_context import keep_batch_whole
from bricolage.native.ir.tensors import Conv, MatMul, Node
from bricolage.native.library import (
    InstructionSet,
    LibraryBucket,
    LibraryTensor,
    RegionUse,
    Value,
    internal_header,
    model_source,
    public_header,
    shared_source,
)
from bricolage.native.library_files import LIBRARY, TITLE, WEIGHTS, shared_weights, weights_digest, weights_header
from bricolage.native.select.algorithm import KernelRequest
from bricolage.native.select.algorithm_table import used_tile


def plan_fused_kernels(
    region: RegionModel,
    target: CpuTarget,
    arithmetic: Arithmetic,
    origins: dict[Node, str],
    fused: Sequence[int] | None = None,
    *,
    waves: bool = False,
    strands: bool = True,
    slices: bool = True,
    layout: Layout = "channels last",
) -> FusionPlan:
    """The region's fused kernels. `origins` takes the operator that each tensor comes from (see `lower_region`). Where `fused` is
    given, only these of the kernels, by number, compute several operators; each other operator has kernels of its own. With `waves`
    they run at the same time where they can (`fuse.waves`); otherwise, with `strands`, only recurrences do (`fuse.strands`).
    With `slices` threads go through a product and what reads it without meeting in between (`fuse.slice_pairs`).
    `layout` says which images lie with their channels last.

    Raises:
        Refused: something in the region has no lowering, nothing in it is what the arithmetic is for, or it has no kernel of
            such a number.
    """
    try:
        infer(region.model)
        inputs, outputs = lower_region(
            region.model,
            origins,
            partial(divide_batch, threads=target.threads, l2_bytes=target.l2_bytes)
            if strands and not waves
            else keep_batch_whole,
        )
    except NoLowering as reason:
        raise Refused(backend=TITLE, reason=str(reason)) from reason
    fusion_plan = plan(inputs, outputs, target.fusion, arithmetic.stores, layout=layout)
    if fused is not None:
        if any(number >= len(fusion_plan.kernels) for number in fused):
            raise Refused(backend=TITLE, reason=f"the region has {len(fusion_plan.kernels)} kernels")
        blocks = operators_apart(fusion_plan, origins, fused)
        fusion_plan = plan(inputs, outputs, target.fusion, arithmetic.stores, blocks, layout)
    same = _changes_nothing(fusion_plan, target, arithmetic)
    if same is not None:
        raise Refused(backend=TITLE, reason=same)
    if waves:
        return in_waves(fusion_plan)
    if strands:
        fusion_plan = in_strands(fusion_plan, target.threads, target.l2_bytes)
    panel = 2 * target.fusion.vector_lanes[1]
    return in_slices(fusion_plan, target.threads, panel, target.l2_bytes) if slices else fusion_plan


def _changes_nothing(found: FusionPlan, target: CpuTarget, arithmetic: Arithmetic) -> str | None:
    """Why an arithmetic computes a region as another one does that asks for less; None where it does not."""
    isa, tile = target.isa, arithmetic.tile
    roots = [kernel.root for kernel in found.kernels]
    products = [root for root in roots if isinstance(root, MatMul) or (isinstance(root, Conv) and not root.depthwise)]
    wider = replace(arithmetic, in_bytes=False, slice_products=0)
    if arithmetic.slice_products and all(
        arithmetic.operand_of(isa, product) == wider.operand_of(isa, product) for product in products
    ):
        return "the region has no products with constant weights that slices of 8 bits suit"
    if arithmetic.in_bytes and all(
        arithmetic.operand_of(isa, product) == wider.operand_of(isa, product) for product in products
    ):
        return "the region has no products with constant weights, which are what int8 is for"
    stored = bool(products) and any(buffer.dtype == "bfloat16" for buffer in found.buffers.values())
    rounded = any(arithmetic.operand_of(isa, product) == arithmetic.operand(isa) for product in products)
    if arithmetic.parts and not stored and not rounded:
        return "the region has no products of floats, which are what bfloat16 is for"
    if arithmetic.stores == "everything" and not found.stores_more_than_operands:
        return "what lies between its kernels is read by products alone, which is stored in bfloat16 anyway"
    floats = [kernel for kernel in found.kernels if isinstance(kernel.root, Conv) and kernel.root.dtype == "float32"]
    requests = [KernelRequest(kernel, found, target, arithmetic) for kernel in floats]
    if tile and not any(used_tile(request) == tile for request in requests):
        return f"no convolution gains from tiles of {tile}x{tile}"
    return None


def write_library(
    source: CSource, isa: Isa, arithmetic: Arithmetic, folder: Path, *, shares_weights: bool = False
) -> None:
    """Compiles the library; writes its constants to the same folder, or, if it shares them, next to it (`shared_weights`).

    Raises:
        Refused: the C does not compile.
        OSError: the disk is full or the folder is not writable.
    """
    toolchain.compile_library(
        in_library(source, source.text),
        arithmetic.flags(isa, of_bytes=source.plan.of_bytes),
        folder / LIBRARY,
        TITLE,
        shared_object(),
    )
    header = weights_header(source.weights)
    if not shares_weights:
        _write_weights(folder / WEIGHTS, header, source.weights)
        return
    (folder / WEIGHTS).write_bytes(header)
    shared = shared_weights(folder, weights_digest(header))
    if sealed.intact(shared):
        return
    discard(shared)
    with sealed.making(shared) as staging:
        _write_weights(staging / WEIGHTS, header, source.weights)


def _write_weights(path: Path, header: bytes, weights: np.ndarray) -> None:
    """In pieces that are multiples of a large page: where a file system keeps files in large pages, what is written so is mapped
    by them."""
    with path.open("wb", buffering=0) as file:
        first = _WRITTEN - len(header)
        file.write(header + weights[:first].tobytes())
        for start in range(first, weights.nbytes, _WRITTEN):
            weights[start : start + _WRITTEN].tofile(file)


_WRITTEN = 8 << 20
"""Bytes at a time."""


def in_library(source: CSource, text: str) -> str:
    """`text`, all of a region or what calls its functions, with the library around it, whose names begin with "region"."""
    inputs, outputs = (
        tuple(LibraryTensor(f"{side}{i}", node.dtype, node.shape) for i, node in enumerate(nodes))
        for side, nodes in (("input", source.plan.inputs), ("output", source.plan.outputs))
    )
    ends = tuple(Value(number) for number in range(len(inputs) + len(outputs)))
    bucket = LibraryBucket((), inputs, outputs, (RegionUse("region_program", 0, ends),))
    sets = [InstructionSet("host", WEIGHTS, "1", source.weights, (bucket,))]
    headers = (public_header("region"), internal_header("region"))
    return "\n\n".join(["#define PROGRAM region_program", text, *headers, model_source("region", (), sets)])


def shared_object() -> Path:
    """What all libraries of this process have in common, compiled.

    Raises:
        Refused: it does not compile.
    """
    parts = [define(_GNU_SOURCE=""), public_header("region"), internal_header("region"), shared_source("region")]
    text = "\n\n".join(parts)
    return toolchain.compile_shared_object(text, TITLE)
