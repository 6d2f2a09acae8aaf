"""`CSource`: the C of a region as a value, whole or in parts that are compiled one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bricolage.native.c import read_header
from bricolage.native.fuse.kernel_plan import FusionPlan

HEAD = read_header("vectors")
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
    """The order of their calls."""
    program: str
    """What the library around it knows of the region: a `struct program` of the name `PROGRAM`, see `c/program.h`."""
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
        """All of it, but for the library around it."""
        parts = [self.prologue, *self.helpers.values(), *self.functions.values(), self.entry, self.program]
        return "\n\n".join(parts)

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
        return "\n\n".join([self.prologue, "\n".join([*renamed, *declared]), self.entry, self.program])

    def symbol(self, name: str) -> str:
        """What a function is called by the linker: a hash of what it does."""
        return f"f_{hashlib.sha256(self._anonymous(name).encode()).hexdigest()[:24]}"

    def _anonymous(self, name: str) -> str:
        """A function with its helpers, without its name."""
        definition = self.functions[name].replace(f"void {name}(", "void FUNCTION(", 1)
        needed: list[str] = []
        below = definition
        for helper, text in reversed(list(self.helpers.items())):
            if helper in below:
                needed.insert(0, text)
                below += text
        return "\n\n".join([self.prologue, *needed, definition.replace("static ", "", 1)])

    def _object(self, name: str) -> str:
        return self._anonymous(name).replace("void FUNCTION(", f"void {self.symbol(name)}(")


def _head(function: str) -> str:
    """The first line of a function behind its comment, without the brace."""
    line = next(line for line in function.splitlines() if line.startswith("static "))
    return line.removesuffix("{").strip()
