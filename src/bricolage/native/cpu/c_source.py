"""`CSource`: the C of a region as a value, whole or in parts that are compiled one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bricolage.native.fuse.kernel_plan import FusionPlan

HEAD = r"""
#include <stdint.h>
#include <stddef.h>
#define LANES @LANES@
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define nat_shuffle(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
typedef int32_t nat_lanes __attribute__((vector_size(4 * LANES)));
#define nat_shuffle(v, ...) __builtin_shuffle(v, (nat_lanes){ __VA_ARGS__ })
#endif
/* Out of line, the vectors of a loop would end at the call; large libraries exhaust what GCC inlines by itself. */
#define INLINE static inline __attribute__((always_inline))
INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE float nat_widen(uint16_t h) { union { uint32_t i; float f; } u = { .i = (uint32_t)h << 16 }; return u.f; }
INLINE uint16_t nat_narrow(float x) {  /* to the nearest, to the even one between two; a NaN stays one */
  union { float f; uint32_t i; } u = { .f = x };
  const uint32_t nearest = (u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16, quiet = (u.i >> 16) | 0x40;
  return x != x ? quiet : nearest;
}
INLINE int64_t nat_wrap(int64_t i, int64_t n) { i = i < 0 ? i + n : i; return i < 0 ? 0 : i >= n ? n - 1 : i; }
"""
"""Vectors, and elements of bfloat16."""


@dataclass(frozen=True)
class CSource:
    """The C of a region, and the constants that it reads."""

    prologue: str
    """What every function may use: vectors, elementary functions, threads."""
    helpers: Mapping[str, str]
    """Micro-kernels and the like by name; later ones may call earlier ones."""
    functions: Mapping[str, str]
    """The work of kernels, by name."""
    entry: str
    """The order of their calls, and what the caller sees."""
    weights: np.ndarray
    """Bytes; every tensor in them starts at a multiple of 64."""
    arena_bytes: int
    thread_scratch_bytes: int
    """Scratch memory of each thread."""
    shared_scratch_bytes: int
    plan: FusionPlan
    meetings: int
    """How often threads wait for each other in a run."""

    @property
    def text(self) -> str:
        """All of it."""
        return "\n\n".join([self.prologue, *self.helpers.values(), *self.functions.values(), self.entry])

    @property
    def objects(self) -> dict[str, str]:
        """Each function as a text of its own that exports it, by symbol; the same function has the same text in any
        library."""
        return {self.symbol(name): self._object(name) for name in self.functions}

    @property
    def main(self) -> str:
        """The rest, which calls the functions of the objects."""
        declared = [f"{_head(text).replace('static ', '', 1)};" for text in self.functions.values()]
        renamed = [f"#define {name} {self.symbol(name)}" for name in self.functions]
        return "\n\n".join([self.prologue, "\n".join([*renamed, *declared]), self.entry])

    def symbol(self, name: str) -> str:
        """What a function is called by the linker: a hash of what it does."""
        return f"f_{hashlib.sha256(self._anonymous(name).encode()).hexdigest()[:24]}"

    def _anonymous(self, name: str) -> str:
        """A function with its helpers, without its name."""
        own = self.functions[name].replace(f"void {name}(", "void FUNCTION(", 1)
        needed: list[str] = []
        below = own
        for helper, text in reversed(list(self.helpers.items())):
            if helper in below:
                needed.insert(0, text)
                below += text
        return "\n\n".join([self.prologue, *needed, own.replace("static ", "", 1)])

    def _object(self, name: str) -> str:
        return self._anonymous(name).replace("void FUNCTION(", f"void {self.symbol(name)}(")


def _head(function: str) -> str:
    """The first line of a function behind its comment, without the brace."""
    line = next(line for line in function.splitlines() if line.startswith("static "))
    return line.removesuffix("{").strip()
