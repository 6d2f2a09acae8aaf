"""Where models come from: our own generator, examples of rules among other operators, NNSmith, mutants of exported networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from benchmarks.fuzz.findings import Feeds
from bricolage.graph.prepare import prepare
from bricolage.rewrite.catalogue import written_rules
from bricolage.testing import CONTEXTS, KINDS, build_model, contexts, random_model
from bricolage.verify.inputs import choose_sample


class NoSample(Exception):
    """A generator gave nothing for a seed, or is not installed; the text says which."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A model with sizes for its symbolic dimensions, and inputs."""

    seed: int
    origin: str
    model: onnx.ModelProto
    sizes: dict[str, int]
    feeds: Feeds


Source = Callable[[int], Sample]


def own(seed: int) -> Sample:
    """Of the generator: every kind of steps in every context in turn, half of them in none."""
    kind = KINDS[seed % len(KINDS)]
    turn = seed // len(KINDS) % (2 * len(CONTEXTS))
    context = CONTEXTS[turn] if turn < len(CONTEXTS) else ""
    model = random_model(seed, written_rules()) if kind == "patterns" else build_model(seed, kind)
    return sample(seed, f"{kind} in {context}" if context else kind, contexts.BY_NAME[context](model))


def sample(seed: int, origin: str, model: ir.Model) -> Sample:
    """With inputs under which the float64 answer is finite, if there are any.

    Raises:
        NoReference: no draw can be evaluated, or none gives a finite number.
    """
    proto = ir.to_proto(model)
    sizes = contexts.sizes(model)
    graph = prepare(ir.from_proto(proto), sizes)
    return Sample(seed, origin, proto, sizes, choose_sample(graph.model, seed).inputs)
