"""XLA on the processor, reached through JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.extents import Extent, shared
from bricolage.backends.interface import Backend, Claim, Kind, RegionModel, Resources, Status, installed, require_static
from bricolage.backends.kernel import Answer, Array, Call, Kernel, StaticKernel
from bricolage.backends.suitability import reads_floats
from bricolage.device.buffers import owned_memory
from bricolage.device.device import Device
from bricolage.errors import Refused, UnsupportedOperator
from bricolage.graph.graph import Region
from bricolage.options import Precision
from bricolage.work.implementation import KernelConfig, named


class Xla(Backend):
    """One compiled program for each region; weights are arguments that stay on the device."""

    name: ClassVar[str] = "xla"
    title: ClassVar[str] = "XLA"
    kind: ClassVar[Kind] = "engine"
    tries_whole: ClassVar[bool] = True
    compiles_slowly: ClassVar[bool] = True

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
        # The thread pool takes its size from NPROC when the client is made.
        variables = {"JAX_PLATFORMS": "cpu", "NPROC": str(resources.threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
        if limit := resources.device.isa:
            widest = {"avx2": "AVX2", "avx512": "AVX512_BF16"}[limit]
            variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={widest}".strip()
        return variables

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        for name, value in self.environment(resources).items():
            os.environ.setdefault(name, value)
        import jax
        import ml_dtypes

        from bricolage.lowering.jax import lower

        require_static(region, self.title)
        try:
            function, constants = lower(region.model, float_dtype=ml_dtypes.bfloat16 if config.name == "bf16" else None)
        except UnsupportedOperator as error:
            raise Refused(backend=self.title, reason=error.sentence) from error
        with jax.enable_x64(True):
            weights = {name: jax.device_put(array) for name, array in constants.items()}
            examples = [jax.ShapeDtypeStruct(info.sizes, info.numpy) for info in region.inputs]
            compiled = jax.jit(function).lower(weights, *examples).compile()
        return _Kernel(region, compiled, weights)


class _Kernel(StaticKernel):
    def __init__(self, region: RegionModel, compiled: Callable[..., Any], weights: dict[str, Any]) -> None:
        super().__init__(Xla.title, region.inputs, region.outputs)
        self._compiled = compiled
        self._weights = weights
        self._results = [(info.sizes, info.numpy) for info in region.outputs]
        self._own: tuple[Any, ...] | None = None
        """For each result the type of its memory where that is handed out; None for one that is copied."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        compiled, weights, arguments = self._compiled, self._weights, _arguments(inputs)

        def call() -> None:
            for target, result in zip(outputs, compiled(weights, *arguments), strict=True):
                np.copyto(target, np.asarray(result))

        return call

    def bind_inputs(self, inputs: Sequence[Array]) -> Answer:
        compiled, weights, arguments = self._compiled, self._weights, _arguments(inputs)
        delivered = self._delivered

        def answer() -> list[object]:
            return delivered(compiled(weights, *arguments), arguments)

        return answer

    def _delivered(self, results: Sequence[Any], arguments: Sequence[Any]) -> list[object]:
        """Results as arrays that the caller may write to: JAX's own are read-only."""
        owned = self._own
        if owned is None:
            owned = self._own = self._examined(results, arguments)
        arrays: list[object] = []
        for result, memory, (sizes, dtype) in zip(results, owned, self._results, strict=True):
            if memory is None:
                arrays.append(np.array(result))
                continue
            held = memory.from_address(result.block_until_ready().unsafe_buffer_pointer())
            held.owner = result
            arrays.append(np.ndarray(sizes, dtype, held))
        return arrays

    def _examined(self, results: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """See `_own`. What shares memory with an argument, a weight, another result or that of another run is copied."""
        again = self._compiled(self._weights, *arguments)
        taken = [*map(_extent, again), *map(_extent, arguments), *map(_extent, self._weights.values())]
        copied = shared([_extent(result) for result in results], taken)
        return tuple(
            # Of types that numpy lacks the elements may lie otherwise than in its arrays.
            None if place in copied or info.numpy.kind == "V" else owned_memory(result.nbytes)
            for place, (info, result) in enumerate(zip(self.outputs, results, strict=True))
        )


def _extent(array: Any) -> Extent:
    first: int = array.block_until_ready().unsafe_buffer_pointer()
    return first, first + array.nbytes


def _arguments(arrays: Sequence[Array]) -> list[Any]:
    """JAX arrays over the buffers' own memory."""
    import jax

    with jax.enable_x64(True):
        return [_shared(array) for array in arrays]


def _shared(array: Array) -> Any:
    """A JAX array over the buffer's own memory. JAX takes arrays to be immutable, which holds during each call."""
    import jax

    return jax.device_put(array, may_alias=True)
