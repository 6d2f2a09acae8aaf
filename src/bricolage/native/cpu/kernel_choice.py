"""How each kernel of a plan is computed, where there is more than one way: as values, and as flat parameters that can be kept.

The names are those of GotoBLAS and BLIS (Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 2008):
a micro-kernel computes MR rows by NR columns of a product; MC rows of A are packed at a time, and KC of the depth k at most are
gone through before the next rows. NR is two vectors; MR is the instruction set's, or 32 rows of a matrix unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bricolage.native.cpu.sharing import MOST
from bricolage.work.config_space import Choice
from bricolage.work.implementation import Scalar

MOST_BYTES = 1 << 40
"""Of a block: more than any."""
TILES = (0, 2, 4)
"""Of Winograd's transformation; 0 for none."""


@dataclass(frozen=True)
class GemmConfig:
    """How a matrix product is cut up. What is None, rules of thumb decide."""

    mc_bytes: int | None = None
    """Packed rows of A (MC × k elements) that are multiplied before the next are packed; for Winograd's transformation, of what a
    block of tiles takes."""
    kc_bytes: int | None = None
    """What is read of a panel of B (KC × NR elements) before the next rows; for a matrix unit."""
    parallel: Literal["m", "n"] | None = None
    """Whether threads share rows (m) or columns (n) of the product."""
    prefetch: bool | None = None
    """Whether the next panel of B is fetched while one is multiplied."""
    rows: int | None = None
    """MR, where that is fewer than the registers would hold."""
    pack: bool | None = None
    """True: rows of A are packed even where they lie in rows already, which keeps rows that are a power of two apart from evicting
    each other."""
    unroll: int | None = None
    """Steps along k that the micro-kernel writes out."""


@dataclass(frozen=True)
class KernelChoice:
    """How one kernel is computed. What is None, rules of thumb decide."""

    tile: int | None = None
    """Tile of Winograd's transformation, of those that the arithmetic allows, where it fits; 0 for none."""
    pieces: int | None = None
    """Into how many pieces a thread's share of a loop is cut at most: more even out what threads are late by, fewer cost less."""
    look_up: bool | None = None
    """Whether long functions of a byte behind a product are looked up in a table (`byte_tables`)."""
    gemm: GemmConfig = field(default_factory=GemmConfig)


DEFAULT = KernelChoice()
"""All by rules of thumb."""


def choice_of(values: Choice) -> KernelChoice:
    """How a kernel is computed with these values of its parameters, by name.

    Raises:
        ValueError: a name is unknown or there twice, or a value is out of range.
    """
    return from_parameters(tuple((f"0.{name}", value) for name, value in values)).get(0, DEFAULT)


def from_parameters(parameters: tuple[tuple[str, Scalar], ...]) -> dict[int, KernelChoice]:
    """The choices of kernels, by number, from pairs of a key such as "3.mc_bytes" and a value; kernels that rules of thumb decide
    altogether are left out.

    Raises:
        ValueError: a key is unknown or there twice, or a value is out of range.
    """
    settings: dict[int, dict[str, Any]] = {}
    for key, value in parameters:
        number, _, name = key.partition(".")
        if name not in _VALID or not number.isdecimal() or str(int(number)) != number:
            raise ValueError(f"unknown parameter of a kernel: '{key}'")
        if not _VALID[name](value):
            raise ValueError(f"the parameter '{key}' cannot be {value!r}")
        kernel_settings = settings.setdefault(int(number), {})
        if name in kernel_settings:
            raise ValueError(f"the parameter '{key}' is there twice")
        kernel_settings[name] = value
    return {number: _choice(values) for number, values in settings.items()}


def _choice(values: Mapping[str, Any]) -> KernelChoice:
    gemm = {name: value for name, value in values.items() if name not in _OF_ANY_KERNEL}
    return KernelChoice(values.get("tile"), values.get("pieces"), values.get("look_up"), GemmConfig(**gemm))


def _is_size(value: Scalar) -> bool:
    return type(value) is int and 0 < value <= MOST_BYTES


def _is_count(most: int) -> Callable[[Scalar], bool]:
    return lambda value: type(value) is int and 0 < value <= most


_OF_ANY_KERNEL = ("tile", "pieces", "look_up")
_MOST_ROWS = 32
UNROLLED = (2, 4)
"""Steps that a micro-kernel may write out instead of one."""
_VALID: Mapping[str, Callable[[Scalar], bool]] = {
    "tile": lambda value: type(value) is int and value in TILES,
    "mc_bytes": _is_size,
    "kc_bytes": _is_size,
    "parallel": lambda value: value in ("m", "n"),
    "prefetch": lambda value: isinstance(value, bool),
    "pack": lambda value: isinstance(value, bool),
    "rows": _is_count(_MOST_ROWS),
    "unroll": lambda value: type(value) is int and value in UNROLLED,
    "pieces": _is_count(MOST),
    "look_up": lambda value: isinstance(value, bool),
}
"""What values a parameter may have."""
