"""Whole models on every fast backend: what each claims of them, compiled and run in this process as its regions would be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.fuzz.findings import Feeds, Finding, script, smaller, store
from benchmarks.fuzz.ledger import Block
from benchmarks.fuzz.sources import Sample
from bricolage.backends import registry
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import Backend, Resources
from bricolage.conformance.regions import answers
from bricolage.device.host import host
from bricolage.errors import NoReference, Refused, UnsupportedOperator
from bricolage.frontends import to_model
from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region, describe
from bricolage.graph.inference import infer
from bricolage.graph.prepare import prepare
from bricolage.testing import Truth, Wrong
from bricolage.verify.reference import Evaluator

FAST = ("native", "onnxruntime", "openvino", "torch")
_RESOURCES = Resources(threads=2)


def check(name: str, sample: Sample, folder: Path, done: Block, only: Sequence[str] = FAST) -> None:
    """Every largest region that a backend claims of a model, on that backend, with the values that flow into it."""
    graph = prepare(to_model(sample.model), sample.sizes)
    regions = {backend: list(_claimed(backend, graph)) for backend in installed(only)}
    inner = {value.name or "" for found in regions.values() for region in found for value in region.inputs}
    values = flowing(graph, sample.feeds, inner - set(sample.feeds))
    for backend, found in regions.items():
        for region in found:
            _try(name, sample.seed, backend, extract_region(region), _fed(region, values), folder, done)


@cache
def installed(names: tuple[str, ...]) -> tuple[Backend, ...]:
    """Those of these backends that are here."""
    here = registry.available(None)
    return tuple(backend for backend in here if backend.name in names)


def _claimed(backend: Backend, graph: Graph) -> Iterator[Region]:
    matcher = Matcher(graph)
    for bits in matcher.maximal(matcher.accepted(backend.claims())):
        yield Region(graph, bits)


def flowing(graph: Graph, feeds: Mapping[str, Any], inner: set[str]) -> dict[str, Any]:
    """Inputs, and values in between in the graph's own types.

    Raises:
        NoReference: an operator can be evaluated by no library.
    """
    found = Evaluator(graph.model, keep=inner)(feeds)
    types = {value.name: describe(value) for node in graph.model.graph for value in node.outputs}
    own = {
        name: found[name].astype(types[name].numpy) if isinstance(found[name], np.ndarray) else found[name]
        for name in inner
    }
    return {**feeds, **own}


def _fed(region: Region, values: Mapping[str, Any]) -> Feeds:
    return {value.name or "": values[value.name or ""] for value in region.inputs}


def _try(name: str, seed: int, backend: Backend, model: ir.Model, feeds: Feeds, folder: Path, done: Block) -> None:
    proto = ir.to_proto(model)
    truth = Truth(model, feeds)
    try:
        truth.expected  # noqa: B018 - computed now
    except NoReference as error:
        done.void += 1
        done.notes[str(error)[:60]] += 1
        return
    try:
        told, what = verdict(backend, proto, truth), "value"
        what = told[0].what if told else what
        text = "; ".join(map(str, told))
    except (Refused, UnsupportedOperator) as error:
        done.refused += 1
        done.notes[f"{backend.name}: {str(error.facts.get('reason', error))[:60]}"] += 1
        return
    except Exception as error:  # a backend fails on what it claims: that is a finding
        text, what = f"{type(error).__name__}: {error}"[:500], "fails"
    done.tested += 1
    done.notes[f"regions on {backend.name}"] += 1
    if text:
        version = registry.version(backend.name)
        finding = Finding(name, seed, f"{backend.name} {version}", what, text, {})
        cut, given = smaller(proto, feeds, partial(_shows, backend, what))
        done.findings.append(store(folder / "findings", finding, cut, given, script(backend.name, finding)).name)


def verdict(backend: Backend, proto: onnx.ModelProto, truth: Truth) -> list[Wrong]:
    """What is wrong with a backend's answers to a model.

    Raises:
        Refused, UnsupportedOperator: the backend declines it. Anything else: it fails.
    """
    config = backend.configs("highest", host())[0]
    found = answers(backend, ir.from_proto(proto), truth.inputs, config, _RESOURCES)
    return [wrong for one in found for wrong in truth.wrong(one)]


def _shows(backend: Backend, what: str, model: onnx.ModelProto, feeds: Feeds) -> bool:
    typed: ir.Model = ir.from_proto(model)
    infer(typed)
    try:
        told = verdict(backend, model, Truth(typed, feeds))
    except (Refused, UnsupportedOperator):
        return False
    except Exception:  # as it failed before
        return what == "fails"
    return what != "fails" and any(wrong.what == what for wrong in told)
