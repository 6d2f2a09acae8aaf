"""Whole models through all of `optimize`, with quick budgets, run by its executable."""

from __future__ import annotations

import functools
from pathlib import Path

import onnx
import onnx_ir as ir

from benchmarks.fuzz.findings import Feeds, Finding, smaller, store
from benchmarks.fuzz.ledger import Block
from benchmarks.fuzz.sources import Sample
from bricolage.api.optimize import optimize
from bricolage.base.options import Options
from bricolage.errors import BricolageError, NoBackend, NoPlacement, NoReference, NotAccurate
from bricolage.graph.inference import infer
from bricolage.graph.prepare import bind
from bricolage.measure.pool import Pool
from bricolage.testing import Truth, contexts

BUDGET_S = 3.0
EVERY_BUDGET_S = 45.0
"""Where every backend takes part, of which some compile for seconds."""
_FAST = ("native", "onnxruntime", "openvino", "torch")
_TWO = ("native", "onnxruntime")
"""Most graphs have these alone, which start in a fraction of the time."""
_BOUND = 1e-5
"""Ten times the bound of the highest precision: the inputs are others than those that it was verified with."""
_DECLINED = (NoBackend, NoPlacement, NotAccurate, NoReference)
"""No backend that takes part runs the model, or none in the time: counted, with the reason."""


def check(name: str, sample: Sample, folder: Path, done: Block, every: bool = False) -> None:
    """One model, optimised and run on other inputs than it was measured with."""
    try:
        told = _told(sample.model, sample.feeds, sample.seed, every)
        what, text = "value", "; ".join(told)
    except _DECLINED as error:
        done.refused += 1
        done.notes[f"{type(error).__name__}: {error}"[:100]] += 1
        return
    except BricolageError as error:  # the model is valid, so it must be taken
        what, text = "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        what, text = "fails", f"{type(error).__name__}: {error}"[:500]
    done.tested += 1
    done.notes[sample.origin] += 1
    if not text:
        return
    finding = Finding(name, sample.seed, "optimize", what, text, {})

    def shows(model: onnx.ModelProto, feeds: Feeds) -> bool:
        try:
            return what == "value" and bool(_told(model, feeds, sample.seed, every))
        except _DECLINED:
            return False
        except Exception as other:
            return f"{type(other).__name__}: {other}"[:60] == text[:60]

    model, feeds = smaller(sample.model, sample.feeds, shows)
    done.findings.append(store(folder / "findings", finding, model, feeds, _SCRIPT.format(text=text)).name)


@functools.cache
def _pool() -> Pool:
    """Workers that stay: to start them takes longer than all the rest of a small model."""
    return Pool()


def _told(model: onnx.ModelProto, feeds: Feeds, seed: int, every: bool) -> list[str]:
    whole: ir.Model = ir.from_proto(model)
    sizes = contexts.sizes(whole)
    options = Options(
        budget_s=EVERY_BUDGET_S if every else BUDGET_S,
        backends=None if every else _FAST if seed % 4 == 0 else _TWO,
        shapes={dimension: (size,) for dimension, size in sizes.items()},
        seed=seed + 1,
    )
    executable = optimize(model, options, pool=_pool())
    fixed = bind(whole, sizes)
    infer(fixed)
    truth = Truth(fixed, feeds, _BOUND)
    return [str(wrong) for wrong in truth.wrong(executable.run(feeds))]


_SCRIPT = '''"""{text}"""

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import bricolage

model, inputs = onnx.load("model.onnx"), dict(np.load("inputs.npz"))
expected = ReferenceEvaluator(model).run(None, inputs)
found = bricolage.optimize(model, bricolage.Options(budget_s=10), inputs=inputs).run(inputs)
for info, right in zip(model.graph.output, expected):
    print(info.name, np.shape(right), np.shape(found[info.name]), np.abs(right - found[info.name]).max(initial=0))
'''
