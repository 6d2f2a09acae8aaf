"""PyTorch eager on oneDNN: one library call for each operator, with nothing decided at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.interface import (
    AfterFailure,
    Backend,
    Claim,
    IndexChecks,
    Kind,
    RegionModel,
    Resources,
    Status,
    installed,
)
from bricolage.backends.isa_limits import library_limits
from bricolage.backends.kernel import Answer, Array, Call, Kernel
from bricolage.backends.result_memory import Extent, find_shared
from bricolage.backends.suitability import nodes_of, reads_floats
from bricolage.base.options import Precision
from bricolage.device.device import Device
from bricolage.errors import Refused, UnsupportedOperator
from bricolage.graph.graph import Region, describe
from bricolage.graph.operator_kinds import category
from bricolage.work.implementation import KernelConfig, Team, named

if TYPE_CHECKING:
    from torch import Tensor, fx

_CHANNELS_LAST = "-nhwc"
_WITH_LAYOUTS = frozenset({"convolution", "transposed convolution", "pool"})
_MORE_WITH_LAYOUTS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "Resize", "Upsample"}
    | {"GlobalAveragePool", "GlobalMaxPool", "GridSample"}
)
_SPINS = 2000
"""How long an idle OpenMP thread of ours watches for work, in loop turns (some 10 µs), where other runtimes wait for cores."""


DIRECT_BYTES = 1 << 16
"""Of inputs and outputs together: copying less takes less time than making tensors of arrays that were not seen before."""
_MOST_SHAPES = 64


class Torch(Backend):
    """Eager execution of the lowered graph, in the layout as exported or channels-last."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch eager"
    teams: ClassVar[tuple[Team, ...]] = ("one-thread",)
    kind: ClassVar[Kind] = "kernels"
    after_failure: ClassVar[AfterFailure] = "lives"
    checks_indices: ClassVar[IndexChecks] = "most"
    tries_whole: ClassVar[bool] = True
    dynamic: ClassVar[bool] = True

    def status(self) -> Status:
        return installed("torch", "torch", "torch")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self)

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        narrow = ("bf16", "bf16-nhwc") if precision in ("medium", "low") and device.bfloat16 else ()
        return named("f32", "f32-nhwc", *narrow)

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Channels come last where something is computed that has images, and bfloat16 takes the place of wider floats."""
        if config.bfloat16 and not reads_floats(region):
            return False
        return not config.base.name.endswith(_CHANNELS_LAST) or any(map(_has_layouts, nodes_of(region)))

    def environment(self, resources: Resources) -> dict[str, str]:
        return {**openmp(resources), **library_limits(resources.device)}

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        import torch

        if config.name.endswith(_CHANNELS_LAST) and not any(map(_has_layouts, region.model.graph.all_nodes())):
            raise Refused(backend=self.title, reason="nothing in it has images, so there is no other layout")
        torch.set_num_threads(resources.threads)  # what lowering computes is computed with them, too
        return _TorchKernel(lower_to_module(region, self.title, config), resources.threads)


def _has_layouts(node: ir.Node) -> bool:
    """Whether a node is a convolution, a pool or the like over images of two or three dimensions: with channels last a library
    computes it otherwise."""
    if category(node.op_type) not in _WITH_LAYOUTS and node.op_type not in _MORE_WITH_LAYOUTS:
        return False
    shapes = [describe(value).shape for value in node.inputs[:1] if value is not None]
    return any(shape is None or len(shape) in (4, 5) for shape in shapes)


def openmp(resources: Resources) -> dict[str, str]:
    """Settings of the OpenMP runtime, which it reads once, when it is loaded."""
    settings = {"OMP_NUM_THREADS": str(resources.threads)}
    if not resources.alone:
        settings["GOMP_SPINCOUNT"] = str(_SPINS)
    return settings


def lower_to_module(region: RegionModel, title: str, config: KernelConfig) -> Any:
    """The region as a torch module in the configuration asked for.

    Raises:
        Refused: an operator has no lowering.
    """
    import torch

    from bricolage.lowering.torch import lower

    try:
        return lower(
            region.model,
            float_dtype=torch.bfloat16 if config.bfloat16 else None,
            channels_last=config.name.endswith(_CHANNELS_LAST),
        )
    except UnsupportedOperator as error:
        raise Refused(backend=title, reason=error.sentence) from error


class _TorchKernel(Kernel):
    """A module that takes torch tensors and returns a tuple of tensors."""

    direct_bytes = DIRECT_BYTES

    def __init__(self, module: fx.GraphModule, threads: int) -> None:
        # The module has no hooks, and looking for them takes longer than a small operator does.
        self._function: Callable[..., Any] = module.forward
        self._threads = threads
        self._unbound = UnboundFunction(
            self._function, list(module.buffers()), threads, branches=_follows_values(module)
        )

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return bind_call(self._function, inputs, outputs, self._threads)

    def bind_inputs(self, inputs: Sequence[Array]) -> Answer:
        return self._unbound.bind(inputs)

    def replica(self, resources: Resources) -> Kernel:
        del resources  # OpenMP has a team for each thread that calls
        return self

    def run(self, inputs: Sequence[object]) -> list[object]:
        return self._unbound(inputs)


def _follows_values(module: fx.GraphModule) -> bool:
    """Whether what a module does, and not only what comes of it, depends on values: it branches, or reads sizes from tensors."""
    from bricolage.lowering.torch.fx_builder import host_value

    return any(module.children()) or any(node.target is host_value for node in module.graph.nodes)


class UnboundFunction:
    """A function on torch tensors as one on arrays, which it reads where they lie, with fresh results. What the function returns
    may be a view of an input, of another result or of what it keeps; such a result is copied."""

    def __init__(
        self, function: Callable[..., Any], kept: Sequence[Tensor] | None, threads: int, *, branches: bool = False
    ) -> None:
        """`kept`: tensors that the function may return; None where they are unknown. Which results are views follows from the
        inputs' shapes, and is looked at once for each, unless the function `branches`."""
        import torch

        self._function, self._branches = function, branches
        self._choose_threads = thread_chooser(threads)
        self._kept = None if kept is None else [_find_extent(tensor) for tensor in kept]
        self._views: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
        """By shapes of inputs, positions of the results that are views."""
        self._enter, self._tensor = torch.inference_mode, torch.from_numpy
        self._contiguous, self._array = torch.Tensor.contiguous, torch.Tensor.numpy

    def __call__(self, inputs: Sequence[object]) -> list[object]:
        for value in inputs:
            if not (type(value) is np.ndarray and value.flags.carray and value.dtype.kind != "V"):
                return self._run_converted(inputs)
        views = self._views.get(tuple([value.shape for value in inputs]))  # type: ignore[attr-defined]  # arrays, all of them
        if views is None:
            return self._run_converted(inputs)
        self._choose_threads()
        with self._enter():
            return self._hand_out(self._function(*map(self._tensor, inputs)), views)

    def bind(self, inputs: Sequence[Array]) -> Answer:
        """A call on these buffers."""
        arguments = [tensor_of(array) for array in inputs]
        shapes, view_cache = tuple(array.shape for array in inputs), self._views
        function, hand_out, mode = self._function, self._hand_out, self._enter()
        choose_threads = self._choose_threads

        def answer() -> list[object]:
            views = view_cache.get(shapes)
            if views is None:
                return self._examine(arguments)
            choose_threads()
            with mode:
                return hand_out(function(*arguments), views)

        return answer

    def _hand_out(self, results: Iterable[Tensor], views: Sequence[int]) -> list[object]:
        """Results as arrays, views copied."""
        tensors = list(map(self._contiguous, results))
        for place in views:
            tensors[place] = tensors[place].clone()
        try:
            return list(map(self._array, tensors))
        except TypeError:  # a type that numpy lacks
            return [array_of(tensor) for tensor in tensors]

    def _run_converted(self, inputs: Sequence[object]) -> list[object]:
        """Results of any inputs."""
        arrays = [np.asarray(value, order="C") for value in inputs]
        # PyTorch warns of read-only arrays.
        return self._examine([tensor_of(array if array.flags.writeable else array.copy()) for array in arrays])

    def _examine(self, arguments: Sequence[Tensor]) -> list[object]:
        """Results of tensors; which are views is looked at, and remembered."""
        self._choose_threads()
        with self._enter():
            results = list(map(self._contiguous, self._function(*arguments)))
            kept = self._kept
            if kept is None:  # what a second run gives while the first one's results live is fresh, or kept
                kept = [_find_extent(tensor) for tensor in self._function(*arguments)]
            views = find_shared([_extent(result) for result in results], [*kept, *map(_find_extent, arguments)])
            if not self._branches and len(self._views) < _MOST_SHAPES:
                self._views[tuple(tuple(argument.shape) for argument in arguments)] = views
            return self._hand_out(results, views)


def _extent(tensor: Tensor) -> Extent:
    """The memory of a contiguous tensor."""
    first: int = tensor.data_ptr()
    return first, first + tensor.nbytes


def _find_extent(tensor: Tensor) -> Extent:
    """All the memory that a tensor holds, which may be more than it shows."""
    storage = tensor.untyped_storage()
    first: int = storage.data_ptr()
    return first, first + storage.nbytes()


def thread_chooser(threads: int) -> Callable[[], None]:
    """What is called in front of each call, in the same thread: PyTorch has a number of threads for each thread that calls, which
    other kernels and the user's own programs set, too."""
    import torch

    current, choose = torch.get_num_threads, torch.set_num_threads

    def choose_threads() -> None:
        if current() != threads:
            choose(threads)

    return choose_threads


def bind_call(function: Callable[..., Any], inputs: Sequence[Array], outputs: Sequence[Array], threads: int) -> Call:
    """A call of a function on torch tensors, on these buffers."""
    import torch

    arguments = [tensor_of(array) for array in inputs]
    targets = [tensor_of(array) for array in outputs]
    inference, choose_threads = torch.inference_mode, thread_chooser(threads)

    def call() -> None:
        choose_threads()
        with inference():
            for target, result in zip(targets, function(*arguments), strict=True):
                target.copy_(result)

    return call


def tensor_of(array: Array) -> Any:
    """A tensor over the array's own memory (bfloat16 and the 8-bit floats by their bits)."""
    import torch

    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    bits = array.view(np.uint8 if array.dtype.itemsize == 1 else np.int16)
    return torch.from_numpy(bits).view(getattr(torch, array.dtype.name))


def array_of(tensor: Any) -> Array:
    """A contiguous array with the tensor's values."""
    import ml_dtypes
    import torch

    tensor = tensor.contiguous()
    try:
        array: Array = tensor.numpy()
    except TypeError:
        bits = tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int16).numpy()
        array = bits.view(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch.")))
    return array
