"""Regions in bulk: many graphs that share nothing in one library of the native engine, each compared with float64."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.fuzz.findings import Finding, script, smaller, store
from benchmarks.fuzz.ledger import Block
from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.base.options import BOUNDS
from bricolage.conformance.regions import answers
from bricolage.errors import NoReference, Refused
from bricolage.graph.inference import infer
from bricolage.native.cpu.toolchain import FORCED_COMPILER_VARIABLE, LEVEL_VARIABLE
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.lowerings import NoLowering
from bricolage.testing import Truth, Wrong, grow, grow_wide, side_by_side
from bricolage.testing.bfloat16_model import in_bfloat16
from bricolage.testing.truth import BOUND
from bricolage.work.implementation import KernelConfig

_ACCURACY = {"f32": BOUND, "bf16": BOUNDS["medium"], "bf16x3": 5e-5, "bf16x6": BOUND}
_OPSET = 24
_SIZES = ((1, 4), (2, 12))
"""Steps of most regions, and of every tenth: compiling takes its time by the operator."""
_NO_PRODUCTS = "no products"


@dataclass(frozen=True, eq=False)
class Part:
    """One graph of many, with what it should answer."""

    seed: int
    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    truth: Truth


def block(name: str, seeds: range, folder: Path, config: str = "f32") -> Block:
    """Tests the regions of these seeds."""
    done = Block(seeds.start, len(seeds))
    parts: list[Part] = []
    for seed in seeds:
        made = part(seed, done, _ACCURACY[config])
        if made is not None:
            parts.append(made)
    threads = 1 + seeds.start // max(1, len(seeds)) % 3
    _together(name, parts, folder, KernelConfig(config), threads, done)
    return done


def part(seed: int, done: Block, bound: float = BOUND) -> Part | None:
    """The region of a seed; None, and booked, where the engine has no lowering or nothing has a reference."""
    graph = grow(seed) if seed % 10 == 9 else grow_wide(seed, edges=seed % 5 == 3, operators=_SIZES[seed % 10 == 8])
    graph.opset = _OPSET
    proto, feeds = graph.proto(), graph.feeds(seed)
    model: ir.Model = ir.from_proto(proto)
    infer(model)
    try:
        lower_region(model)
    except NoLowering as reason:
        done.refused += 1
        done.notes[str(reason)[:60]] += 1
        return None
    truth = _truth(proto, model, feeds, bound)
    try:
        truth.expected  # noqa: B018 - computed now
    except NoReference as error:
        done.void += 1
        done.notes[str(error)[:60]] += 1
        return None
    return Part(seed, proto, feeds, truth)


def _together(name: str, parts: Sequence[Part], folder: Path, config: KernelConfig, threads: int, done: Block) -> None:
    """Tests parts in one library; in halves where that fails."""
    if not parts:
        return
    try:
        found = _answers({f"s{one.seed}_": (one.proto, one.feeds) for one in parts}, config, threads)
    except Exception as error:  # whatever it is, the part at fault is looked for
        if len(parts) == 1:
            _failed(name, parts[0], folder, config, threads, done, error)
            return
        middle = len(parts) // 2
        _together(name, parts[:middle], folder, config, threads, done)
        _together(name, parts[middle:], folder, config, threads, done)
        return
    for one in parts:
        told = _told(one.truth, [answer[f"s{one.seed}_"] for answer in found])
        done.tested += 1
        if told:
            _keep(name, one, folder, config, threads, done, told[0].what, "; ".join(map(str, told)))


def _told(truth: Truth, found: Sequence[dict[str, np.ndarray]]) -> list[Wrong]:
    told = [wrong for answer in found for wrong in truth.wrong(answer)]
    first, *others = found
    for other in others:
        for output, value in first.items():
            if value.tobytes() != other[output].tobytes():
                told.append(Wrong(output, "value", 0.0, "two calls answer different bits"))
    return told


def _answers(
    given: dict[str, tuple[onnx.ModelProto, dict[str, Any]]], config: KernelConfig, threads: int
) -> list[dict[str, dict[str, np.ndarray]]]:
    """The outputs of each model by its prefix, of two calls."""
    merged = side_by_side({prefix: proto for prefix, (proto, _) in given.items()})
    feeds = {prefix + name: value for prefix, (_, own) in given.items() for name, value in own.items()}
    return [
        {
            prefix: {name.removeprefix(prefix): value for name, value in run.items() if name.startswith(prefix)}
            for prefix in given
        }
        for run in answers(Native(), ir.from_proto(merged), feeds, config, Resources(threads=threads))
    ]


def _failed(
    name: str, one: Part, folder: Path, config: KernelConfig, threads: int, done: Block, error: Exception
) -> None:
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, Refused) and _NO_PRODUCTS in reason:
        done.refused += 1
        done.notes[_NO_PRODUCTS] += 1
        return
    done.tested += 1
    _keep(name, one, folder, config, threads, done, "fails", reason)


def _keep(
    name: str, one: Part, folder: Path, config: KernelConfig, threads: int, done: Block, what: str, text: str
) -> None:
    variables = {
        key: os.environ[key]
        for key in (FORCED_ISA_VARIABLE, FORCED_COMPILER_VARIABLE, LEVEL_VARIABLE)
        if key in os.environ
    }
    status = Native().status()
    finding = Finding(name, one.seed, f"native {getattr(status, 'version', '')} {config.text}", what, text, variables)
    shows = partial(_shows, config, threads, what, one.truth.bound)
    model, feeds = smaller(one.proto, dict(one.feeds), shows)
    done.findings.append(store(folder / "findings", finding, model, feeds, script("native", finding, config.name)).name)
    done.notes[what] += 1


def _shows(
    config: KernelConfig, threads: int, what: str, bound: float, model: onnx.ModelProto, feeds: dict[str, Any]
) -> bool:
    typed: ir.Model = ir.from_proto(model)
    infer(typed)
    try:
        found = _answers({"": (model, feeds)}, config, threads)
    except Exception:  # a finding that is a failure is looked for
        return what == "fails"
    return what != "fails" and bool(_told(_truth(model, typed, feeds, bound), [answer[""] for answer in found]))


def _truth(proto: onnx.ModelProto, model: ir.Model, feeds: dict[str, Any], bound: float) -> Truth:
    return Truth(model, feeds, bound, in_bfloat16(proto) if bound == BOUNDS["medium"] else None)
