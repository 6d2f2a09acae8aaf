"""Text files and pipes are UTF-8 whatever the process's locale is. Libraries change it (OpenVINO does, for a moment, from any
thread), and µ in a report is then no character."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bricolage

SOURCES = Path(bricolage.__file__).parent
_CALLS = re.compile(r"open\s*\(|read_text|write_text|text\s*=\s*True")


def _mode(call: ast.Call, position: int) -> str:
    mode = next((keyword.value for keyword in call.keywords if keyword.arg == "mode"), None)
    if mode is None and len(call.args) > position:
        mode = call.args[position]
    return str(mode.value) if isinstance(mode, ast.Constant) else "r"


def _is_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text by its name and arguments."""
    function = call.func
    if isinstance(function, ast.Attribute):
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        if function.attr == "open":
            return owner not in ("os", "archive") and "b" not in _mode(call, 0)
        if function.attr == "fdopen":
            return "b" not in _mode(call, 1)
        if function.attr in ("read_text", "write_text"):
            return owner != "output"  # `cli.output.write_text`
    if isinstance(function, ast.Name) and function.id == "open":
        return "b" not in _mode(call, 1)
    return any(
        keyword.arg == "text" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def without_encoding(source: str) -> Iterator[int]:
    """Lines of calls that would use the locale's encoding."""
    if _CALLS.search(source) is None:  # to read a tree takes a hundred times as long
        return
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and _is_text(node)
            and not any(keyword.arg == "encoding" for keyword in node.keywords)
        ):
            yield node.lineno


def test_what_uses_the_locale_is_found() -> None:
    source = """
path.read_text()
path.read_text(encoding="utf-8")
open(path, "rb")
open(path, "w")
path.open()
subprocess.run(words, text=True)
"""
    assert list(without_encoding(source)) == [2, 5, 6, 7]


def test_every_text_is_utf8() -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in sorted(SOURCES.rglob("*.py"))
        for line in without_encoding(path.read_text(encoding="utf-8"))
    ]
    assert found == []
