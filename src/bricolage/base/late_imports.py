"""Modules of others that are executed at their first use instead of at their import, for processes that start often; and those that
a process may lack which only runs artifacts.

`onnx_ir` imports sympy for arithmetic on symbolic dimensions, which workers hardly ever do: it takes longer than everything else
that a worker imports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

from bricolage.errors import MissingDependency

SYMBOLIC = ("sympy", "onnx_ir._symbolic_shapes")
"""The second uses the first while it is executed."""

_PACKAGES: Mapping[str, str] = {
    "jinja2": "jinja2",
    "ml_dtypes": "ml-dtypes",
    "onnx": "onnx-ir",
    "onnx_ir": "onnx-ir",
    "psutil": "psutil",
    "rich": "rich",
    "scipy": "scipy",
    "typer": "typer",
}
"""What bricolage depends on and an artifact may run without: by module the package to install. onnx comes with onnx-ir."""


@contextmanager
def require_dependency(purpose: str) -> Iterator[None]:
    """Within it, a module that is missing of what bricolage depends on is named with its package.

    Raises:
        MissingDependency: `purpose` says what it is for, as in "to write C".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _PACKAGES:
            raise
        raise MissingDependency(name=name, purpose=purpose, package=_PACKAGES[name]) from error


class _Late:
    """A finder that answers for a few modules, once for each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification with a loader that waits; None for others, which are imported as usual."""
        if name not in self._names:
            return None
        self._names.discard(name)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_late(names: Sequence[str] = SYMBOLIC) -> None:
    """From now on these are executed when an attribute of theirs is first asked for. Only for processes in which one thread
    imports: before Python 3.12 another thread may see the module half-made."""
    sys.meta_path.insert(0, _Late([name for name in names if name not in sys.modules]))
