"""Kernels whose calls end as a caller expects: with an answer, or with an error of ours that names the backend.

In front of a call, indices that the backend does not check are looked at where inputs decide them (`verify.index_guard`). A call
that fails may leave a backend in a state in which it answers nothing more: it is compiled again then, when the next call comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from bricolage.backends.interface import Backend, Kernel, RegionModel, Resources
from bricolage.backends.kernel import Answer, Array, Call
from bricolage.errors import BricolageError, IndexBeyond, Refused, RunFailed
from bricolage.graph.region_model import FileModel, RegionEnds
from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    from bricolage.verify.index_guard import IndexGuard

_REASON = 300
Remake = Callable[[Resources], Kernel]
Ends = tuple[float, float]
T = TypeVar("T")


class InputGuard(Protocol):
    """What looks at the indices among a kernel's inputs: `IndexGuard`, or `KeptGuard` where no graph was read."""

    leaves: tuple[str, ...]
    shown: dict[str, Ends]

    @property
    def empty(self) -> bool:
        """Whether nothing has to be looked at."""
        ...

    def find_widest(self) -> Mapping[str, Ends]:
        """The widest ends of the inputs that are right; empty where none are known that hold for all."""
        ...

    def check(self, arrays: Mapping[str, ModelValue]) -> None:
        """Raises IndexBeyond where an operator would read or write outside of a tensor."""
        ...


@dataclass(frozen=True)
class SupervisedRegion:
    """What is known of a kernel's region."""

    ends: RegionEnds
    guard: InputGuard | None
    """What looks at its indices; None where nothing has to be looked at."""
    model: RegionModel | None
    """From which a guard is made where a call fails; None of a user's file."""


def supervise_kernel(
    kernel: Kernel, backend: Backend, region: RegionModel, resources: Resources, remake: Remake
) -> SupervisedKernel:
    """The kernel with what its backend does not do itself. `remake` compiles it again. A user's file is run as its tool runs it for
    any user, faults of the tool included: its errors become ours, and nothing is refused.

    Raises:
        Refused: indices would have to be looked at while the region runs, and the backend does not; or it fails where sizes that
            come from data are 0.
    """
    if isinstance(region, FileModel):
        return SupervisedKernel(kernel, backend, SupervisedRegion(region, None, None), resources, remake)
    if reason := backend.fails_at_nothing(region):
        raise Refused(backend=backend.title or backend.name, reason=reason)
    guard = None if backend.checks_indices == "all" else guard_of(region)
    if guard is not None and guard.unchecked and backend.checks_indices == "none":
        use = guard.unchecked[0]
        reason = (
            f"it does not check what operator '{use.node.name}' ({use.node.op_type}) is given, and no input shows it"
        )
        raise Refused(backend=backend.title or backend.name, reason=reason)
    supervised = SupervisedRegion(region, None if guard is None or guard.empty else guard, region)
    return SupervisedKernel(kernel, backend, supervised, resources, remake)


def guard_of(region: RegionModel) -> IndexGuard | None:
    """What looks at the indices of a region; None where it uses none."""
    import onnx_ir as ir  # here, with what reads graphs: what opens kept code needs none of it

    from bricolage.graph.graph import describe
    from bricolage.graph.inference import infer
    from bricolage.verify.index_guard import IndexGuard
    from bricolage.verify.index_uses import index_users

    model = region.model
    users = index_users(model.graph)
    if not users:
        return None
    if any(describe(value).shape is None for node in users for value in node.inputs if value is not None):
        model = ir.load(region.path)
        infer(model)
    return IndexGuard(model)


class SupervisedKernel(Kernel):
    """See the module."""

    def __init__(
        self,
        kernel: Kernel,
        backend: Backend,
        region: SupervisedRegion,
        resources: Resources,
        remake: Remake,
    ) -> None:
        self._kernel: Kernel | None = kernel
        self._backend, self.region, self._guard = backend, region, region.guard
        self._names = tuple(info.name for info in region.ends.inputs)
        self._resources, self._remake = resources, remake
        self._making = threading.Lock()
        self.takes_turns, self.direct_bytes, self.kept = kernel.takes_turns, kernel.direct_bytes, kernel.kept

    def replica(self, resources: Resources) -> Kernel | None:
        """See `Kernel.replica`."""
        twin = self.current().replica(resources)
        if twin is None:
            return None
        return SupervisedKernel(twin, self._backend, self.region, resources, self._remake)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call that raises IndexBeyond or RunFailed where the kernel's own may raise anything."""
        compiled = self.current()
        return self._watch(
            compiled, compiled.bind(inputs, outputs), lambda kernel: kernel.bind(inputs, outputs), inputs
        )

    def bind_inputs(self, inputs: Sequence[Array]) -> Answer | None:
        """See `Kernel.bind_inputs`; raises as a call of `bind` does."""
        compiled = self.current()
        answer = compiled.bind_inputs(inputs)
        if answer is None:
            return None
        return self._watch(compiled, answer, lambda kernel: kernel.bind_inputs(inputs) or answer, inputs)

    def _watch(
        self, made: Kernel, run: Callable[[], T], bind: Callable[[Kernel], Callable[[], T]], inputs: Sequence[Array]
    ) -> Callable[[], T]:
        """A call of a kernel that is bound to inputs. `bind` does so again where the kernel is compiled again."""
        within, given = self._within(inputs), self._name_inputs(inputs)

        def call() -> T:
            nonlocal made, run
            if made is not self._kernel:
                made = self.current()
                run = bind(made)
            for test in within:
                if not test():
                    self._look(given)
                    break
            try:
                return run()
            except Exception as error:
                raise self._explain_failure(made, error, given) from error

        return call

    def run(self, inputs: Sequence[object]) -> list[object]:
        """See `Kernel.run`.

        Raises:
            IndexBeyond, RunFailed
        """
        compiled = self._kernel or self.current()
        if self._guard is not None:
            self._guard.check(self._name_inputs(inputs))
        try:
            return compiled.run(inputs)
        except Exception as error:
            raise self._explain_failure(compiled, error, self._name_inputs(inputs)) from error

    def own_call(self, inputs: Sequence[object]) -> Callable[[], object]:
        """See `Kernel.own_call`: nothing of ours is in it."""
        return self.current().own_call(inputs)

    def _name_inputs(self, inputs: Sequence[object]) -> dict[str, object]:
        return dict(zip(self._names, inputs, strict=True))

    def _within(self, inputs: Sequence[Array]) -> list[Callable[[], bool]]:
        """For each input that decides indices, whether all its elements are where indices are known to be right."""
        if self._guard is None:
            return []
        places = dict(zip(self._names, inputs, strict=True))
        return [_test(self._guard, name, places[name]) for name in self._guard.leaves]

    def _look(self, arrays: Mapping[str, object]) -> None:
        if self._guard is not None:
            self._guard.check(arrays)

    def current(self) -> Kernel:
        """The backend's own kernel; compiled again where a call has failed."""
        with self._making:
            if self._kernel is None:
                self._kernel = self._remake(self._resources)
            return self._kernel

    def _explain_failure(self, kernel: Kernel, error: Exception, given: Mapping[str, object]) -> Exception:
        """The error of a call, as ours: what the inputs are at fault for as theirs, and anything else with the backend's name."""
        if isinstance(error, BricolageError):
            return error
        if self._backend.after_failure == "again" and self._kernel is kernel:
            self._kernel = None
        try:
            guard = self._guard or (None if self.region.model is None else guard_of(self.region.model))
            if guard is not None and not guard.empty:
                guard.check(given)
        except IndexBeyond as beyond:
            return beyond
        return RunFailed(backend=self._backend.title or self._backend.name, stage="to run", reason=error_line(error))


def error_line(error: Exception) -> str:
    """What a backend's error says, in one line without a trace."""
    lines = [line.strip() for line in str(error).splitlines()]
    says = [line for line in lines if line and not line.startswith(("Exception from", "Traceback", "While "))]
    return f"{type(error).__name__}: {' '.join(says or lines)}"[:_REASON]


def _test(guard: InputGuard, name: str, array: Array) -> Callable[[], bool]:
    least, most = np.minimum.reduce, np.maximum.reduce
    flat = array.reshape(-1)
    if not flat.size or flat.dtype.kind not in "biuf":
        return lambda: name in guard.shown
    # One pass instead of two where zero is known to be right: a negative number is a large one without its sign.
    unsigned = flat.view(f"u{flat.dtype.itemsize}") if flat.dtype.kind == "i" else None

    def test() -> bool:
        shown = guard.shown.get(name)
        if shown is None:
            return False
        low, high = shown
        if unsigned is not None and low <= 0 and most(unsigned) <= high:
            return True
        return bool(low <= least(flat) and most(flat) <= high)

    return test
