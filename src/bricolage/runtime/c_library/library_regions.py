"""The regions of a plan's buckets as C, for each set of instructions, with one block of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bricolage.backends.interface import RegionModel
from bricolage.backends.native.region_source import generate_for
from bricolage.errors import BadOption, NotExportable, Refused
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Graph, TensorInfo
from bricolage.graph.store import Store
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.library import InstructionSet, LibraryBucket, LibraryTensor, RegionUse, Value
from bricolage.plan.plan import Bucket, Plan, TensorSpec
from bricolage.plan.program_step import Step, placement_steps
from bricolage.runtime.c_library.instruction_sets import LibrarySet
from bricolage.runtime.c_library.targets import ExportTarget
from bricolage.runtime.programs import placement_of
from bricolage.work.arena import assign_offsets
from bricolage.work.liveness import Lifetime

_NATIVE = "native"
_ALIGNED = 64
_DECIDE_AGAIN = "Decide it again: `bricolage optimize`"
_OURS_ALONE = "Decide it for our engine alone: `bricolage optimize --backend native`"


@dataclass(frozen=True)
class RegionFile:
    """C of a region for a set of instructions."""

    name: str
    """Of the file, without its suffix, and of the region's program."""
    text: str
    flags: tuple[str, ...]


@dataclass
class _RegionFiles:
    """Files of regions, each once: sets of instructions often have the same code for a region."""

    files: dict[tuple[str, tuple[str, ...]], RegionFile] = field(default_factory=dict)

    def add(self, name: str, text: str, flags: tuple[str, ...]) -> str:
        """The name of a region with that text and these flags, its own or an earlier one's."""
        region = RegionFile(name, f"#define PROGRAM {name}\n{text}", flags)
        return self.files.setdefault((text, flags), region).name


@dataclass
class _WeightBlocks:
    """Blocks of weights, each once, one after another."""

    blocks: list[np.ndarray] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def add(self, block: np.ndarray) -> int:
        """Where a block begins: buckets of several sizes of a batch mostly have the same."""
        key = hashlib.sha256(np.ascontiguousarray(block).data).hexdigest()
        if key not in self.offsets:
            self.offsets[key] = self.size
            self.blocks.append(block)
            self.size += -(-block.nbytes // _ALIGNED) * _ALIGNED
        return self.offsets[key]

    def joined(self) -> np.ndarray:
        """All of them as bytes."""
        whole = np.zeros(self.size, np.uint8)
        for block, offset in zip(self.blocks, self.offsets.values(), strict=True):
            whole[offset : offset + block.nbytes] = block
        return whole


@dataclass(frozen=True)
class BucketSteps:
    """What a bucket runs."""

    bucket: Bucket
    graph: Graph
    steps: tuple[Step, ...]
    regions: tuple[RegionModel, ...]


def read_steps(path: Path, plan: Plan, directory: Path) -> tuple[BucketSteps, ...]:
    """The regions of all buckets.

    Raises:
        NotExportable: a region is another backend's, regions run side by side, an output is no result of a region, or buckets
            have other inputs.
    """
    store, buckets = Store(directory), list[BucketSteps]()
    for number, bucket in enumerate(plan.buckets):
        where = f" for {', '.join(f'{k}={v}' for k, v in bucket.program.sizes.items())}" if bucket.program.sizes else ""
        others = sorted({r.implementation.backend for r in bucket.program.regions} - {_NATIVE})
        if others:
            region = next(r for r in bucket.program.regions if r.implementation.backend != _NATIVE)
            reason = f"its region '{region.title}'{where} runs in {region.implementation.backend}"
            raise NotExportable(path=path, reason=reason, advice=_OURS_ALONE)
        if bucket.program.schedule is not None:
            reason = f"its regions{where} run side by side on cores of their own"
            raise NotExportable(path=path, reason=reason, advice=_DECIDE_AGAIN)
        graph = graph_of(directory / bucket.program.graph)
        steps = placement_steps(graph, placement_of(bucket), store)
        buckets.append(BucketSteps(bucket, graph, steps, tuple(RegionModel(step.path) for step in steps)))
        _check_ends(path, buckets[0].graph, buckets[-1], number)
    return tuple(buckets)


def _check_ends(path: Path, first: Graph, steps: BucketSteps, number: int) -> None:
    """Raises:
    NotExportable: as `read_steps`.
    """
    ends, others = ([[info.name for info in side] for side in (g.inputs, g.outputs)] for g in (first, steps.graph))
    if ends != others:
        reason = f"bucket {number} has other inputs or outputs than the first one"
        raise NotExportable(path=path, reason=reason, advice=_DECIDE_AGAIN)
    computed = {info.name for region in steps.regions for info in region.results}
    for name in ends[1]:
        if name not in computed:
            reason = f"its output '{name}' is an input or a constant"
            raise NotExportable(path=path, reason=reason, advice=_DECIDE_AGAIN)


def compile_sets(
    path: Path,
    name: str,
    plan: Plan,
    buckets: Sequence[BucketSteps],
    sets: Sequence[LibrarySet],
    target: ExportTarget,
) -> tuple[list[InstructionSet], list[RegionFile]]:
    """The tables and the C of all sets.

    Raises:
        NotExportable: a region has no C for a set, or the weights are larger than what the target addresses.
    """
    tables: list[InstructionSet] = []
    files, weight_files = _RegionFiles(), dict[bytes, str]()
    for library_set in sets:
        weights, entries = _WeightBlocks(), list[LibraryBucket]()
        for number, steps in enumerate(buckets):
            uses, values, between = [], *_values(steps)
            for r, (step, region) in enumerate(zip(steps.steps, steps.regions, strict=True)):
                config = step.implementation.config
                threads = 1 if config.team == "one-thread" else plan.provenance.options.threads
                processor = CpuTarget(library_set.isa, threads if target.has_threads else 1, target.caches)
                try:
                    source, arithmetic = generate_for(region, config.of_all, processor, own=library_set.own)
                except Refused as error:
                    raise NotExportable(path=path, reason=error.facts["reason"], advice=_OURS_ALONE) from error
                word = f"{name}_{library_set.name}_{number}_{r}"
                flags = arithmetic.flags(library_set.isa, of_bytes=source.plan.of_bytes)
                word = files.add(word, source.text, flags)
                ends = tuple(values[info.name] for info in (*region.inputs, *region.results))
                uses.append(RegionUse(word, weights.add(source.weights), ends))
            sizes = tuple(steps.bucket.program.sizes.values())
            entries.append(
                LibraryBucket(
                    sizes,
                    _tensors(steps.graph.inputs, plan.inputs),
                    _tensors(steps.graph.outputs, plan.outputs),
                    tuple(uses),
                    between,
                )
            )
        if weights.size >= target.address_bytes:
            reason = f"its weights take {weights.size} bytes, and a process of {target.name} has {target.address_bytes}"
            raise NotExportable(path=path, reason=reason, advice="Quantise the model, or choose another target")
        block = weights.joined()
        digest = hashlib.sha256(block.data).digest()
        file = weight_files.setdefault(digest, f"weights-{library_set.name}.bin")
        tables.append(InstructionSet(library_set.name, file, library_set.runs, block, tuple(entries)))
    if len(weight_files) == 1:
        tables = [replace(table, file="weights.bin") for table in tables]
    return tables, list(files.files.values())


def dimension_names(plan: Plan) -> tuple[str, ...]:
    """Of the open dimensions, in the order of a bucket's sizes.

    Raises:
        BadOption: buckets have other dimensions.
    """
    names = tuple(plan.buckets[0].program.sizes)
    if any(tuple(bucket.program.sizes) != names for bucket in plan.buckets):
        raise BadOption(option="artifact", value=plan.model, advice="its buckets have other open dimensions")
    return names


def _values(steps: BucketSteps) -> tuple[Mapping[str, Value], int]:
    """Where each tensor of a bucket is, and the bytes of those between regions."""
    ends = (*steps.graph.inputs, *steps.graph.outputs)
    values = {info.name: Value(number) for number, info in enumerate(ends)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    infos: dict[str, TensorInfo] = {}
    for number, region in enumerate(steps.regions):
        for info in region.results:
            first[info.name], infos[info.name] = number, info
        last.update(dict.fromkeys((info.name for info in (*region.inputs, *region.results)), number))
    lifetimes = {
        name: Lifetime(info.elements * info.numpy.itemsize, first[name], last[name] + 1)
        for name, info in infos.items()
        if name not in values
    }
    offsets, size = assign_offsets(lifetimes)
    return {**values, **{name: Value(offset, between=True) for name, offset in offsets.items()}}, size


def _tensors(infos: Sequence[TensorInfo], specs: Sequence[TensorSpec]) -> tuple[LibraryTensor, ...]:
    """Ends of a bucket by the names that the model has for them."""
    names = [spec.name for spec in specs] if len(specs) == len(infos) else [info.name for info in infos]
    return tuple(LibraryTensor(name, str(info.numpy), info.sizes) for name, info in zip(names, infos, strict=True))
