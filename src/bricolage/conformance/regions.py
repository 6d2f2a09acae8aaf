"""A model run as regions run: on disk, compiled, bound to buffers, called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.backends.interface import Backend, Kernel, RegionModel, Resources
from bricolage.base import scratch
from bricolage.device.buffers import allocate_aligned
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from bricolage.work.implementation import KernelConfig

F32 = KernelConfig("f32")
RUBBISH = 0x5A
"""Every byte of an output buffer before a call."""


def write_region(model: ir.Model, folder: Path) -> RegionModel:
    """The model in `folder`, which exists, as backends get regions. Its weights are moved there.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    path = folder / "region.onnx"
    Store(folder).share([model])
    write_model(model, path)
    return RegionModel(path)


def answers(
    backend: Backend,
    model: ir.Model,
    inputs: Mapping[str, object],
    config: KernelConfig = F32,
    resources: Resources | None = None,
    calls: int = 2,
) -> list[dict[str, Any]]:
    """Outputs by name of several calls of a backend's kernel for a whole model, compiled in this process. The model is not changed.

    Static models run bound to buffers, all others by `Kernel.run`, once.

    Raises:
        Refused: the backend declines the model. Anything else: it fails.
    """
    with scratch.using(scratch.temporary()) as folder:
        region = write_region(model.clone(), folder)
        kernel = backend.compile(region, config, resources or Resources())
        values = [inputs[info.name] for info in region.inputs]
        names = [info.name for info in region.outputs]
        if all(info.static for info in (*region.inputs, *region.outputs)):
            runs: Sequence[Sequence[Any]] = run_bound(kernel, region, values, calls)
        else:
            runs = [kernel.run(values)]
    return [dict(zip(names, run, strict=True)) for run in runs]


def run_bound(kernel: Kernel, region: RegionModel, values: Sequence[object], calls: int = 2) -> list[list[np.ndarray]]:
    """Outputs of several calls of a kernel of a static region, bound once; before each, output buffers hold rubbish.

    Raises:
        TypeError: a value is of another type than the region's input.
    """
    inputs = [allocate_aligned(info.sizes, info.numpy) for info in region.inputs]
    outputs = [allocate_aligned(info.sizes, info.numpy) for info in region.outputs]
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
