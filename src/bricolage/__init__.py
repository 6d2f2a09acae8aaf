"""bricolage: the fastest verified way to run a deep-learning model on this machine.

import bricolage
fast = bricolage.optimize("model.onnx")
y = fast(x)
fast.save("model.bricolage")

These six names are public: `optimize`, `quantize`, `load`, `Executable`, `Options`, `BricolageError`; and those of
`bricolage.train`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bricolage._version import __version__

if TYPE_CHECKING:
    from bricolage.api.load_model import load
    from bricolage.api.optimize import optimize
    from bricolage.api.quantize import quantize
    from bricolage.base.options import Options
    from bricolage.errors import BricolageError
    from bricolage.runtime.executable import Executable

__all__ = ["BricolageError", "Executable", "Options", "__version__", "load", "optimize", "quantize"]

_HOMES = {
    "BricolageError": "bricolage.errors",
    "Executable": "bricolage.runtime.executable",
    "Options": "bricolage.base.options",
    "load": "bricolage.api.load_model",
    "optimize": "bricolage.api.optimize",
    "quantize": "bricolage.api.quantize",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used: importing bricolage alone stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bricolage' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
