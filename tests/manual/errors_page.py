"""The page of errors, from the catalogue."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

from bricolage import errors
from bricolage.errors import BricolageError

_SUBJECTS = {
    "models": "Model files",
    "inputs": "Inputs of a call",
    "servers": "Model servers",
    "language": "Text generation",
    "options": "Options, files and folders",
    "accuracy": "Samples and metrics",
    "artifacts": "Artifacts, packs, devices",
    "backends": "Backends",
    "results": "Decisions",
    "costs": "Measurements",
    "quantization": "Quantisation",
    "rewriting": "Rewriting",
    "training": "Training",
    "clusters": "Clusters",
}


def _template(text: str) -> str:
    """A template as a reader sees it: what is filled in stands in capitals."""
    filled = re.sub(r"\{(\w+)[^}]*\}", lambda field: f"`{field[1].upper()}`", text)
    return " ".join(filled.replace("|", "\\|").replace("<", "&lt;").split())


def list_errors() -> list[type[BricolageError]]:
    """Every error of the catalogue, without the classes that others derive from alone."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BricolageError)]
    return [kind for kind in kinds if kind.__module__ != BricolageError.__module__]


def errors_page() -> str:
    """The page."""
    lines = [
        "# Errors",
        "",
        "Each error has a name, a sentence that says what happened, and one that says what to do.",
        "The command line prints both and ends with the exit code. In Python the name is a class of `bricolage.errors`.",
        "Words in capitals stand for the facts of your case.",
    ]
    kinds = list_errors()
    for module, title in _SUBJECTS.items():
        subject: ModuleType = getattr(errors, module)
        rows = [kind for kind in kinds if kind.__module__ == subject.__name__]
        lines += ["", f"## {title}", "", "| error | what it means | what to do | exit code |", "|---|---|---|---|"]
        lines += [
            f"| `{kind.__name__}` | {_template(kind.what)} | {_template(kind.hint)} | {kind.exit_code} |"
            for kind in rows
        ]
    return "\n".join(lines) + "\n"
