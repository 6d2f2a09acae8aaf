"""The float64 reference as a backend: runs any region slowly and right, rounded to the types that the model states.

It claims nothing and is never offered, so no plan has it: it runs parts of a program that must not be at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from bricolage._version import __version__
from bricolage.backends.interface import (
    AfterFailure,
    Available,
    Backend,
    Claim,
    IndexChecks,
    Kind,
    RegionModel,
    Resources,
    Status,
)
from bricolage.backends.kernel import Array, Call, Kernel
from bricolage.verify.reference import Evaluator
from bricolage.work.implementation import Implementation, KernelConfig


class ReferenceBackend(Backend):
    """Evaluates in float64 (see `bricolage.verify.reference`)."""

    name: ClassVar[str] = "reference"
    title: ClassVar[str] = "float64 reference"
    kind: ClassVar[Kind] = "engine"
    after_failure: ClassVar[AfterFailure] = "lives"
    checks_indices: ClassVar[IndexChecks] = "most"
    dynamic: ClassVar[bool] = True

    def status(self) -> Status:
        return Available(__version__)

    def claims(self) -> Iterable[Claim]:
        return ()

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        del config, resources
        return _Kernel(region)


REFERENCE = Implementation(ReferenceBackend.name)


class _Kernel(Kernel):
    def __init__(self, region: RegionModel) -> None:
        self._inputs, self._outputs = region.inputs, region.outputs
        self._evaluate = Evaluator(
            region.model, borrowing=True
        )  # in worker processes, as all of a program that is judged

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def call() -> None:
            for target, value in zip(outputs, self.run(inputs), strict=True):
                np.copyto(target, np.asarray(value))

        return call

    def run(self, inputs: Sequence[object]) -> list[object]:
        given = {info.name: value for info, value in zip(self._inputs, inputs, strict=True)}
        outputs = self._evaluate(given)
        rounded: list[object] = []
        for info in self._outputs:
            value = outputs[info.name]
            tensor = info.dtype is not None and isinstance(value, np.ndarray) and value.dtype.kind != "O"
            rounded.append(value.astype(info.numpy, copy=False) if tensor else value)
        return rounded
