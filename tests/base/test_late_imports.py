"""Modules that are executed at their first use."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from bricolage.base.late_imports import import_late
import_late()
import onnx_ir
assert "sympy.core" not in sys.modules
assert str(onnx_ir.SymbolicDim("2*n") + 1) == "2*n + 1"
assert "sympy.core" in sys.modules
import sympy
assert sympy.Max(1, 2) == 2
import_late()
"""


def test_symbolic_dimensions_bring_sympy_when_they_are_reckoned_with() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
