"""A model as a region on disk, run as regions run: compiled, bound to buffers, called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.backends.interface import Kernel, RegionModel
from bricolage.device.buffers import aligned
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store

RUBBISH = 0x5A
"""Every byte of an output buffer before a call."""


def written(model: ir.Model, folder: Path) -> RegionModel:
    """The model in `folder`, which exists, with its weights beside it, as backends get regions. Its weights are moved there.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    path = folder / "region.onnx"
    Store(folder).share([model])
    write_model(model, path)
    return RegionModel(path)


def run_bound(kernel: Kernel, region: RegionModel, values: Sequence[object], calls: int = 2) -> list[list[np.ndarray]]:
    """Outputs of so many calls of a kernel of a static region, bound once; before each, output buffers hold rubbish.

    Raises:
        TypeError: a value is of another type than the region's input.
    """
    inputs = [aligned(info.sizes, info.numpy) for info in region.inputs]
    outputs = [aligned(info.sizes, info.numpy) for info in region.outputs]
    for buffer, value in zip(inputs, values, strict=True):
        np.copyto(buffer, np.asarray(value).reshape(buffer.shape), casting="no")
    call = kernel.bind(inputs, outputs)
    runs: list[list[np.ndarray]] = []
    for _ in range(calls):
        for buffer in outputs:
            buffer.reshape(-1).view(np.uint8).fill(RUBBISH)
        call()
        runs.append([buffer.copy() for buffer in outputs])
    return runs
