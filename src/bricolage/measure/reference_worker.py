"""The float64 reference in a worker process: a loop without end, or an operator that takes all memory, costs an answer and
nothing else."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from bricolage.device.device import Device
from bricolage.errors import BricolageError, InvalidGraph, NoReference, NotWritable, ReferenceLimit, StatedOtherwise
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.measure.log import MeasurementLog
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from bricolage.verify.named_arrays import digest, load_values, save_tensors
from bricolage.verify.reference import Values

SHORTEST_S = 60.0
"""Seconds that an evaluation may always take."""
_ATTEMPTS = 5
"""For an evaluation whose worker is ended from outside."""
_FLOPS = 2e8
"""Float64 operations a second that the slowest machine reaches, in the slowest library: by this the time grows with the work."""
_KNOWN: Mapping[str, type[BricolageError]] = {
    error.__name__: error for error in (NoReference, InvalidGraph, StatedOtherwise)
}


def reference_limit(graph: Graph, budget_s: float) -> float:
    """Seconds that one evaluation of `graph` may take: by its work, and as long as the user has time at least."""
    return max(SHORTEST_S, budget_s) + workload(graph.everything).flops / _FLOPS


@dataclass
class ReferenceAnswers:
    """What was answered, by a digest of what was asked: decisions for one model on several devices ask the same."""

    most_bytes: int = 1 << 28
    _known: dict[str, Values] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, asked: str) -> Values | None:
        """The answer, if it is known."""
        answer = self._known.get(asked)
        return None if answer is None else Values(answer, answer.borrowed)

    def add(self, asked: str, values: Values) -> None:
        """Remembers it, as long as there is room."""
        size = sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
        if self._bytes + size <= self.most_bytes:
            self._bytes += size
            self._known[asked] = Values(values, values.borrowed)


class WorkerReference:
    """Evaluates as `verify.reference.evaluate` does, in a worker of `pool` that is ended at a limit of time or memory.

    Constants of the models lie in files of `directory` (see `bricolage.graph.store`) or in the models themselves.
    """

    def __init__(
        self,
        pool: Pool,
        device: Device,
        directory: Path,
        limit_s: float,
        log: MeasurementLog | None = None,
        answers: ReferenceAnswers | None = None,
    ) -> None:
        """`limit_s`: seconds for one evaluation; the memory limit is the pool's. `log`: of the decision. `answers`: that several
        references share."""
        self._pool = pool
        self._log = log or MeasurementLog()
        self._regime = Regime((), 1, False, device, "reference")
        self._directory = directory
        self._limit_s = limit_s
        self._numbers = itertools.count()
        self._answers = answers
        self._last: tuple[str, Values] | None = None
        """The last answer, with a digest of what was asked: inputs are chosen by what the reference makes of them, and then
        judged by it."""

    def start(self) -> None:
        """Starts the worker now; what it imports is there when the first evaluation is asked for."""
        if self._answers:
            return  # most of what will be asked is known
        self._pool.ahead(self._regime, "import_reference")

    def __call__(
        self,
        model: ir.Model,
        inputs: Mapping[str, Any],
        *,
        dtype: type[np.floating[Any]] = np.float64,
        keep: Collection[str] = (),
    ) -> Values:
        """Outputs of the model by name, and the intermediate values named in `keep`.

        Raises:
            NoReference: an operator can be evaluated by no library, an input is missing, or `keep` names no value.
            ReferenceLimit: it takes more time or memory than is allowed, or its process fails.
            InvalidGraph: a value has not the shape or type that the model states.
            NotWritable: the disk is full or the folder is not writable.
        """
        number = next(self._numbers)
        given, output_file = (self._directory / f"reference-{number}-{what}.npz" for what in ("inputs", "outputs"))
        path = self._write(model)
        try:
            asked = digest(f"{path.name} {np.dtype(dtype).name} {sorted(keep)}", inputs)
            if self._last is not None and self._last[0] == asked:
                return Values(self._last[1], self._last[1].borrowed)
            if self._answers is not None and (cached := self._answers.get(asked)) is not None:
                return cached
            save_tensors(given, inputs)
            for _ in range(_ATTEMPTS):
                answer = self._pool.ask(
                    self._pool.worker(self._regime),
                    self._limit_s,
                    "evaluate",
                    model=str(path),
                    inputs=str(given),
                    outputs=str(output_file),
                    dtype=np.dtype(dtype).name,
                    keep=sorted(keep),
                )
                if self._log.heard(answer).outcome != "lost":
                    break
            if not answer.ok:
                raise ReferenceLimit(reason=self._explain_failure(answer.outcome, answer.reason))
            if "error" in answer.facts:
                raise _KNOWN[str(answer.facts["error"])](reason=answer.facts["because"])
            values = Values(load_values(output_file), cast(list[str], answer.facts["borrowed"]))
            if not keep:  # what is kept can be as large as all of memory, and is asked for once
                self._last = asked, values
            if self._answers is not None:
                self._answers.add(asked, values)
            return Values(values, values.borrowed)
        finally:
            for file in (path, given, output_file):
                with suppress(FileNotFoundError):
                    file.unlink()

    def _write(self, model: ir.Model) -> Path:
        """A file named by what is in it, by which the worker knows a model that it has prepared already."""
        text = ir.to_proto(model).SerializeToString(deterministic=True)
        path = self._directory / f"reference-{hashlib.sha256(text).hexdigest()[:16]}.onnx"
        try:
            path.write_bytes(text)
        except OSError as error:
            raise NotWritable(path=path, reason=error.strerror or error) from error
        return path

    def _explain_failure(self, outcome: str, reason: str) -> str:
        if outcome == "timed-out":
            return f"it takes more than {self._limit_s:.0f} s; a loop in the model may not end"
        return f"its process failed ({outcome}: {reason})"
