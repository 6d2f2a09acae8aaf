"""The backends that are here, and what is missing with the command that adds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from bricolage.api.backend_status import BackendStatus
from bricolage.base.codec import JsonObject, encode
from bricolage.report.tables import plain_table

_HEADS = [("Backend", "left"), ("Kind", "left"), ("Version", "left"), ("Configs", "fold"),
          ("ONNX cases", "right"), ("Version tested", "fold")]  # fmt: skip


def backend_json(found: BackendStatus) -> JsonObject:
    """What is known of it: of one that is missing why, and of the others the rest."""
    document = encode(found)
    absent = {"reason", "cure"} if found.version is not None else {"configs"}
    absent |= {name for name in ("capabilities", "self_check") if document[name] is None}
    return {name: value for name, value in document.items() if name not in absent}


def backend_parts(found: Sequence[BackendStatus]) -> Iterator[RenderableType]:
    """Those that are here, what self-checks found, and those that are missing."""
    here = [backend for backend in found if backend.version is not None]
    if here:
        yield plain_table(_HEADS, [_row(backend) for backend in here])
        yield from _explain_self_checks(here)
    missing: list[list[str | Text]] = [
        [Text(backend.name, "bold"), backend.reason, backend.cure] for backend in found if backend.version is None
    ]
    if missing:
        yield ""
        yield plain_table([("Missing", "left"), ("Why", "fold"), ("What adds it", "fold")], missing)


def _row(backend: BackendStatus) -> list[str | Text]:
    cases = {} if backend.capabilities is None else backend.capabilities.cases
    passed = f"{cases.get('passes', 0)} of {sum(cases.values())}" if cases else "-"
    configs = dict.fromkeys(config for configs in backend.configs.values() for config in configs)
    return [
        Text(backend.name, "bold"),
        backend.kind or "",
        backend.version or "",
        ", ".join(configs),
        passed,
        _version_tested(backend),
    ]


def _version_tested(backend: BackendStatus) -> str:
    """The version that the capability table is of, with what a self-check found where another one is installed."""
    if backend.capabilities is None:
        return "-"
    if backend.self_check is None:
        return "installed"
    checked = backend.self_check
    return f"{backend.capabilities.version} ({checked.passed} checked, {len(checked.failed)} failed)"


def _explain_self_checks(found: Sequence[BackendStatus]) -> Iterator[Text]:
    """What it means that a table is of another version, what a self-check found, and the command for another table."""
    others = [(b.capabilities, b.self_check) for b in found if b.self_check is not None and b.capabilities is not None]
    if others:
        yield Text(
            "\nWhere the table is of another version, a self-check of the model's operators decides what is used.  "
            "What makes the table again, in a checkout of the sources:"
        )
    for tested, checked in others:
        yield Text(f"  {tested.command}")
        for kind, reason in checked.failed.items():
            yield Text(f"    not used: {kind}: {reason}")
