"""What a graph answers: as eager returns it, complex numbers included, and how far an executable's answer is from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch

from bricolage.base.options import Options
from bricolage.errors import LeftToPyTorch
from bricolage.verify.bound import FACTOR
from bricolage.verify.compare import relative_error

Outputs: TypeAlias = tuple[torch.Tensor, ...]
Call: TypeAlias = Callable[..., Outputs]
_MOST_WEIGHTS = 1 << 28
"""Of a graph that is computed in float64, elements."""


class RealEnds(torch.nn.Module):
    """A module whose complex inputs and results [...] are real ones [..., 2], which ONNX has no other type for."""

    def __init__(self, inner: torch.nn.Module, kinds: Sequence[torch.dtype]) -> None:
        """`kinds`: of its inputs."""
        super().__init__()
        self.inner, self._complex = inner, [kind.is_complex for kind in kinds]

    def forward(self, *given: torch.Tensor) -> Outputs:
        """Its results."""
        pairs = zip(given, self._complex, strict=True)
        return tuple(
            map(
                real,
                _tuple(
                    self.inner(*(torch.view_as_complex(argument) if whole else argument for argument, whole in pairs))
                ),
            )
        )


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers [...] as real ones [..., 2]; others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


class Form:
    """Types and strides of the results of a graph, as eager returns them. Under autocast an export may compute in a wider or
    narrower type than eager; how far that is off is for those to say who compare answers."""

    def __init__(self, expected: Outputs) -> None:
        self._complex = [tensor.is_complex() for tensor in expected]
        self._types = [tensor.dtype if tensor.is_floating_point() else None for tensor in expected]
        self._strides = [None if tensor.is_contiguous() else tensor.stride() for tensor in expected]

    def __call__(self, found: object) -> Outputs:
        """What an executable returned, in this form."""
        return tuple(map(_restore_form, _tuple(found), self._complex, self._types, self._strides))


def _restore_form(
    tensor: torch.Tensor, is_complex: bool, dtype: torch.dtype | None, stride: tuple[int, ...] | None
) -> torch.Tensor:
    tensor = torch.view_as_complex(tensor) if is_complex else tensor
    if dtype is not None and tensor.dtype != dtype and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor if stride is None else _restore_strides(tensor, stride)


def _restore_strides(tensor: torch.Tensor, like: tuple[int, ...]) -> torch.Tensor:
    """The same values, dimensions in memory in the order of these strides."""
    order = sorted(range(tensor.ndim), key=lambda d: -like[d])
    back = sorted(range(tensor.ndim), key=lambda d: order[d])
    return tensor.permute(order).contiguous().permute(back)


def answer_difference(ours: Outputs, eagers: Outputs) -> float:
    """How far an answer is from another, relative; infinite where types or shapes differ."""
    if any(a.dtype != b.dtype or a.shape != b.shape for a, b in zip(ours, eagers, strict=True)):
        return float("inf")
    return _apart(ours, eagers)


def check_in_float64(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], eager: Call, ours: Call, options: Options
) -> None:
    """Compares answers with those of the module in float64, on these inputs and on their opposites.

    Args:
        module: the graph with its weights; it is not changed.
        inputs: of a call.
        eager: the graph, from its inputs to its results.
        ours: what is judged, likewise.
        options: with the bound. Unless a number is given, an answer may be `FACTOR` times as far off as eager's.

    Raises:
        LeftToPyTorch: an answer is too far off.
    """
    exact = _in_float64(module)
    for given in (inputs, [-source if source.is_floating_point() else source for source in inputs]):
        expected = eager(*given)
        if given is not inputs and not all(bool(torch.isfinite(tensor).all()) for tensor in expected):
            continue  # a square root, say
        outputs, eager_error = ours(*given), 0.0
        wanted: Outputs | None = None
        try:  # calling the module itself would print what it fails with
            wanted = None if exact is None else _tuple(exact.forward(*map(_wide, given)))
        except Exception:  # it names types of its own: eager replaces float64, and is as far off as an answer may be
            exact = None
        if wanted is not None:
            eager_error = _apart(expected, wanted)
        error = answer_difference(outputs, expected) if wanted is None else _apart(outputs, wanted)
        bound = options.bound if options.tolerance is not None else max(options.bound, FACTOR * eager_error)
        bound *= FACTOR if wanted is None else 1.0
        if not error <= bound:
            what = "eager's" if wanted is None else "what float64 makes of it"
            raise LeftToPyTorch(reason=f"the answer is {error:.1e} from {what}, which is more than {bound:.1e}")


def _in_float64(module: torch.nn.Module) -> torch.nn.Module | None:
    tensors = [*module.parameters(), *module.buffers()]
    if sum(tensor.numel() for tensor in tensors) > _MOST_WEIGHTS:
        return None
    double_module = copy.deepcopy(module)
    for part in double_module.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else _wide(buffer)
    return double_module.double()


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _apart(found: Outputs, wanted: Outputs) -> float:
    return relative_error([_array(tensor) for tensor in found], [_array(tensor) for tensor in wanted])


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = real(tensor)
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).detach().numpy()


def _tuple(found: object) -> Outputs:
    several = found if isinstance(found, tuple) else (found,)
    assert all(isinstance(output, torch.Tensor) for output in several)
    return several
