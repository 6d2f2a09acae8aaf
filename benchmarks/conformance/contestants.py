"""Who runs a case: bricolage as users get it, ONNX Runtime's own ONNX backend, or one backend of bricolage alone."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable

from onnx.backend.base import BackendRep

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.options import Options
from bricolage.conformance.attempt import Outcome, Result
from bricolage.conformance.expected_outputs import difference
from bricolage.conformance.suite import Case
from bricolage.device.host import host
from bricolage.driver.heuristic_placement import Failures
from bricolage.errors import BricolageError, Unclaimed
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph
from bricolage.work.implementation import Assignment, Implementation, Placement

BRICOLAGE, ONNX_RUNTIME = "bricolage", "onnxruntime's backend"
_REASON_LENGTH = 300

Prepare = Callable[[Case], BackendRep]


def names() -> tuple[str, ...]:
    """All contestants that are installed here."""
    alone = tuple(name for name in registry.names() if isinstance(registry.get(name).status(), Available))
    return (BRICOLAGE, ONNX_RUNTIME, *alone)


def attempt(contestant: str, case: Case) -> Result:
    """What comes of a case on a contestant. An error that is none of the catalogue's counts as wrong, of ONNX Runtime as refused.

    A backend of bricolage alone takes the whole graph, or refuses it, whatever its capability table says.
    """
    declined = (Exception, unittest.SkipTest) if contestant == ONNX_RUNTIME else (BricolageError,)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(_prepare(contestant)(case).run(list(case.inputs)))
    except declined as error:
        return Result("refuses", _short(str(error) or type(error).__name__))
    except Exception as error:  # whatever it is, a user would meet it
        return Result("wrong", _short(f"{type(error).__name__}: {error}"))
    wrong = difference(case.outputs, found, case.rtol, case.atol)
    outcome: Outcome = "passes" if wrong is None else "wrong"
    return Result(outcome, wrong or "")


def _prepare(contestant: str) -> Prepare:
    if contestant == ONNX_RUNTIME:
        import onnxruntime as ort
        from onnxruntime.backend.backend import OnnxRuntimeBackend

        ort.set_default_logger_severity(4)
        return lambda case: OnnxRuntimeBackend.prepare(case.model, "CPU")
    from bricolage.onnx_backend import BricolageBackend, Representation

    if contestant == BRICOLAGE:
        return lambda case: BricolageBackend.prepare(case.model)
    backend = registry.get(contestant)
    alone = Implementation(contestant, backend.configs("highest", host())[0])

    def whole(graph: Graph, failed: Failures) -> Placement:
        if failed:
            raise Unclaimed(name="the graph", op_type="all of it", reasons=f"{contestant}: it has failed")
        return (Assignment(graph.everything.bits, alone),)

    return lambda case: Representation(to_model(case.model), whole, Options())


def _short(reason: str) -> str:
    return " ".join(reason.split())[:_REASON_LENGTH]
