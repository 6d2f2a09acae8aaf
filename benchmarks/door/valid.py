"""Whether what is written of a model is valid: its graph as prepared and as rewritten, and all regions of both."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from benchmarks.door import models
from benchmarks.door.pairs import Pair
from benchmarks.door.processes import tell
from benchmarks.real.catalogue import NETWORKS as CATALOGUE
from benchmarks.real.catalogue import Unavailable
from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.conformance.suite import Case, suite_cases
from bricolage.device.host import host
from bricolage.driver.candidates import find_candidates
from bricolage.driver.promising_variants import write_variant_files
from bricolage.driver.sources import GivenModel, Source, open_source
from bricolage.errors import BricolageError
from bricolage.graph.extract import write_model
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.model_interface import externalise_model
from bricolage.graph.prepare import simplify, symbolic_dimensions
from bricolage.plan import artifact
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.engine.retrace import Fixpoint
from bricolage.rewrite.variants import rewritten_variants
from bricolage.testing.validity import INFERENCE, NO_KERNEL, find_faults

SUITE, PAIR, CASE, NETWORK = "suite", "pair", "case", "network"
"""Kinds of models; each name begins with its kind."""
NETWORKS = {network.name: network for network in CATALOGUE}


@dataclass(frozen=True)
class Given:
    """A model with its inputs, where there are any, and sizes of open dimensions."""

    source: onnx.ModelProto | Path
    inputs: Mapping[str, Any]
    shapes: Mapping[str, int] = field(default_factory=dict)


@functools.cache
def suite(operators: frozenset[str] | None = None) -> dict[str, Case]:
    """The models of onnx's own suite by name, or only those of one operator among `operators`."""
    return {case.name: case for case in suite_cases(operators)}


def validated(names: Sequence[str], given_cases: Path | None, pickled_pairs: Path | None) -> None:
    """Tells of each model, and of each graph that is made of it, whether it is valid: "right", "refused" (by us with a sentence; by
    onnx or ONNX Runtime, to which the model as it came was no better), "wrong" or "broken"."""
    made: Mapping[str, Pair] = pickle.loads(pickled_pairs.read_bytes()) if pickled_pairs else {}  # the parent's
    odd = models.read(given_cases) if given_cases else {}
    backends = registry.available()
    for title in names:
        try:
            with scratch.using(scratch.temporary()) as folder:
                bad = _validated(title, _given(title, made, odd), folder, backends)
            tell(title, "wrong" if bad else "right", f"{bad} graphs" if bad else "")
        except (BricolageError, Unavailable) as error:
            tell(title, "refused", str(error))
        except Exception as error:  # whatever else is raised is a row here
            tell(title, "broken", f"{type(error).__name__}: {error}")


def _given(title: str, made: Mapping[str, Pair], odd: Mapping[str, Any]) -> Given:
    kind, _, name = title.partition(" ")
    if kind == NETWORK:
        return Given(NETWORKS[name].path(), NETWORKS[name].inputs(0))
    if kind == CASE:
        model, inputs, *more = odd[name].make()
        return Given(model, inputs, models.sizes(more[0] if more else {}))
    case = suite()[name] if kind == SUITE else made[name].trial
    constants = {tensor.name for tensor in case.model.graph.initializer}
    entering = [value.name for value in case.model.graph.input if value.name not in constants]
    return Given(
        case.model, {name: value for name, value in zip(entering, case.inputs, strict=False) if value is not None}
    )


def _validated(title: str, given: Given, folder: Path, backends: Sequence[Backend]) -> int:
    """How many of the graphs that are made of a model are not valid, each of which it tells of."""
    path = given.source if isinstance(given.source, Path) else None
    proto = onnx.load(given.source, load_external_data=False) if isinstance(given.source, Path) else given.source
    before = find_faults(proto, path)
    if INFERENCE in before and INFERENCE not in find_faults(_unstated(proto), path):
        del before[INFERENCE]  # what it states is disputed, which we need not repeat
    tell(f"{title}: as it came", "refused" if before else "right", _words(before))
    options = Options(shapes={name: (size,) for name, size in given.shapes.items()})
    opened = open_source(GivenModel(given.source, inputs=given.inputs or None), options, folder)
    bad = 0
    for part, file in _files(opened, folder, backends):
        after = find_faults(onnx.load(file, load_external_data=False), file)
        outcome, reason = verdict(before, after)
        bad += outcome == "wrong"
        tell(f"{title}: {part}", outcome, reason)
    return bad


def verdict(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, str]:
    """What `find_faults` says of a graph, and why. It is not to blame for what the model had `before`, nor for a kernel that
    there is not."""
    ours = {who: why for who, why in after.items() if who not in before and NO_KERNEL not in why}
    return "wrong" if ours else "refused" if after else "right", _words(ours or after)


def _unstated(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the sizes that it states of what its operators make."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return bare


def _words(found: Mapping[str, str]) -> str:
    return "; ".join(f"{who}: {why}" for who, why in found.items())


def _files(opened: Source, folder: Path, backends: Sequence[Backend]) -> Iterator[tuple[str, Path]]:
    """Every file that is written of a model, with its name: what an artifact holds, what `rewrite` writes, and the regions that may
    be placed, each operator alone among them."""
    yield "in the artifact", folder / artifact.MODEL
    if symbolic_dimensions(opened.model):
        yield "rewritten at open sizes", _rewritten(opened, folder)
    for bucket in opened.buckets:
        yield "prepared", folder / opened.store.graph(bucket.graph)
        yield from _regions("prepared", bucket.graph, opened, backends)
        for variant in rewritten_variants(bucket.graph):
            yield variant.name, folder / write_variant_files(variant, opened.store)
            yield from _regions(variant.name, variant.graph, opened, backends)


def _rewritten(opened: Source, folder: Path) -> Path:
    model = opened.model.clone()
    simplify(model)
    rewritten: ir.Model = externalise_model(Fixpoint(model, rules()).made().model, opened.model)
    opened.store.share([rewritten], "rewritten.data")
    write_model(rewritten, folder / "rewritten.onnx")
    return folder / "rewritten.onnx"


def _regions(title: str, graph: Graph, opened: Source, backends: Sequence[Backend]) -> Iterator[tuple[str, Path]]:
    """Equal ones once, as they are measured."""
    identities = Identities(graph)
    candidates = find_candidates(graph, backends, Options().precision, host(), slow_per_region=True)
    alone = (1 << number for number in range(len(graph)))
    parts = {identities.key(region): region for bits in alone for region in (Region(graph, bits),)}
    parts |= {group.key: Region(graph, group.regions[0]) for group in candidates.groups}
    for key, region in parts.items():
        operators = "+".join(operator.op_type for operator in region.operators)
        yield f"{title}, {operators} {key[:6]}", opened.store.region(region, key)
