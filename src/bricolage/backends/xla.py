"""XLA on the processor, reached through JAX."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import ClassVar, Protocol

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.interface import Backend, Claim, Kind, RegionModel, Resources, Status, installed, require_static
from bricolage.backends.kernel import Answer, Array, Call, Kernel, StaticKernel
from bricolage.backends.result_memory import Extent, find_shared
from bricolage.backends.suitability import reads_floats
from bricolage.base.options import Precision
from bricolage.device.buffers import view_memory
from bricolage.device.device import Device
from bricolage.errors import Refused, UnsupportedOperator
from bricolage.graph.graph import Region
from bricolage.work.implementation import KernelConfig, Team, named

_FLAGS = "XLA_FLAGS"
_WIDEST: Mapping[str, str] = {"": "", "avx2": "AVX2", "avx512": "AVX512_BF16"}
"""XLA's names for the widest instructions that a device is kept to."""
_NAMES = ("SSE4_2", "AVX2", "AVX512_VNNI", "AVX512_BF16", "AVX512", "AMX_FP16", "AMX", "AVX")
"""All that XLA knows, none before one that begins with it."""
_lock = threading.Lock()
"""Of the environment, while a client is made."""


class Xla(Backend):
    """One compiled program for each region; weights are arguments that stay on the device."""

    name: ClassVar[str] = "xla"
    title: ClassVar[str] = "XLA"
    kind: ClassVar[Kind] = "engine"
    tries_whole: ClassVar[bool] = True
    compiles_slowly: ClassVar[bool] = True
    teams: ClassVar[tuple[Team, ...]] = ("one-thread",)

    def status(self) -> Status:
        return installed("jax", "jax", "xla")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self)

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        return named("f32", "bf16") if precision in ("medium", "low") and device.bfloat16 else named("f32")

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """bfloat16 takes the place of wider floats."""
        return not config.bfloat16 or reads_floats(region)

    def environment(self, resources: Resources) -> dict[str, str]:
        return {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", **_flags(resources.device.isa)}

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        import jax
        import ml_dtypes

        from bricolage.lowering.jax import lower

        require_static(region, self.title)
        try:
            function, constants = lower(region.model, float_dtype=ml_dtypes.bfloat16 if config.name == "bf16" else None)
        except UnsupportedOperator as error:
            raise Refused(backend=self.title, reason=error.sentence) from error
        place = _place(resources.threads, resources.device.isa, resources.device.cores)
        with jax.enable_x64(True):
            weights = {name: jax.device_put(array, place) for name, array in constants.items()}
            examples = [jax.ShapeDtypeStruct(info.sizes, info.numpy, sharding=place) for info in region.inputs]
            compiled = jax.jit(function).lower(weights, *examples).compile()
        return _Kernel(region, compiled, weights, place)


def _flags(isa: str) -> dict[str, str]:
    """The variable that keeps XLA to an instruction set, next to what the user has in it."""
    return {_FLAGS: f"{os.environ.get(_FLAGS, '')} --xla_cpu_max_isa={_WIDEST[isa]}".strip()} if isa else {}


@cache
def _place(threads: int, isa: str, cores: tuple[int, ...]) -> object:
    """A device of as many threads, next to the one of the process's own JAX, whose threads are others; they stay on the `cores` on
    which they are started. It runs a program in the thread that calls, with help of its own ones: to hand a small program over
    takes longer than the program does.

    Raises:
        Refused: it would use other instructions.
    """
    import jax
    from jaxlib import xla_client

    del cores
    with _lock, _variables({"NPROC": str(threads), **_flags(isa)}):  # read whenever a client is made
        _check_instructions(isa, xla_client.CompileOptions().SerializeAsString())
        client = xla_client.make_cpu_client(asynchronous=False)
    return jax.sharding.SingleDeviceSharding(client.local_devices()[0])


def _check_instructions(isa: str, options: bytes) -> None:
    """XLA reads its flags once a process, so they may be those of another kernel or of the user's own programs. `options`: as they
    were read, in which the limit is a word.

    Raises:
        Refused: they limit instructions otherwise than `isa` does, and the user's flags do not say so.
    """
    kept = next((name for name in _NAMES if name.encode() in options), "")
    if kept == _WIDEST[isa] or (not isa and kept in os.environ.get(_FLAGS, "")):
        return
    reason = f"its flags were read before in this process, with the instruction set {kept or 'of the processor'}"
    raise Refused(backend=Xla.title, reason=f"{reason}, and {_WIDEST[isa] or 'that of the processor'} was asked for")


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """With these variables in the environment, which is the user's again afterwards."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _JaxArray(Protocol):
    """What is used of an array of JAX, which mypy does not read."""

    nbytes: int

    def block_until_ready(self) -> _JaxArray: ...

    def unsafe_buffer_pointer(self) -> int: ...


class _Kernel(StaticKernel):
    def __init__(
        self,
        region: RegionModel,
        compiled: Callable[..., Sequence[_JaxArray]],
        weights: dict[str, _JaxArray],
        place: object,
    ) -> None:
        super().__init__(Xla.title, region.inputs, region.outputs)
        self._place = place
        self._compiled = compiled
        self._weights = weights
        self._results = [(info.sizes, info.numpy) for info in region.outputs]
        self._copied: frozenset[int] | None = None
        """Places of results that are copied, where that is known: the memory of the others is handed out."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        compiled, weights, arguments = self._compiled, self._weights, _arguments(inputs, self._place)

        def call() -> None:
            for target, result in zip(outputs, compiled(weights, *arguments), strict=True):
                np.copyto(target, np.asarray(result))

        return call

    def bind_inputs(self, inputs: Sequence[Array]) -> Answer:
        compiled, weights, arguments = self._compiled, self._weights, _arguments(inputs, self._place)
        hand_out = self._hand_out

        def answer() -> list[object]:
            return hand_out(compiled(weights, *arguments), arguments)

        return answer

    def _hand_out(self, results: Sequence[_JaxArray], arguments: Sequence[_JaxArray]) -> list[object]:
        """Results as arrays that the caller may write to: JAX's own are read-only."""
        copied = self._copied
        if copied is None:
            copied = self._copied = self._find_copied(results, arguments)
        return [
            np.array(result)
            if place in copied
            else view_memory(result.block_until_ready().unsafe_buffer_pointer(), result, *self._results[place])
            for place, result in enumerate(results)
        ]

    def _find_copied(self, results: Sequence[_JaxArray], arguments: Sequence[_JaxArray]) -> frozenset[int]:
        """Places of the results that share memory with an argument, a weight, another result or that of another run. They also hold
        those of types that numpy lacks, whose elements may lie otherwise than in its arrays."""
        again = self._compiled(self._weights, *arguments)
        taken = [*map(_extent, again), *map(_extent, arguments), *map(_extent, self._weights.values())]
        lacking = {place for place, info in enumerate(self.outputs) if info.numpy.kind == "V"}
        return frozenset(find_shared([_extent(result) for result in results], taken)) | lacking


def _extent(array: _JaxArray) -> Extent:
    first = array.block_until_ready().unsafe_buffer_pointer()
    return first, first + array.nbytes


def _arguments(arrays: Sequence[Array], place: object) -> list[_JaxArray]:
    """JAX arrays over the buffers' own memory."""
    import jax

    with jax.enable_x64(True):
        return [_share_array(array, place) for array in arrays]


def _share_array(array: Array, place: object) -> _JaxArray:
    """A JAX array over the buffer's own memory. JAX takes arrays to be immutable, which holds during each call."""
    import jax

    on_device: _JaxArray = jax.device_put(array, place, may_alias=True)
    return on_device
