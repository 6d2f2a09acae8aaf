"""What there is to know of the backends here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.backends import capabilities, registry
from bricolage.backends.interface import Backend, Missing
from bricolage.base.options import PRECISIONS
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.measure.selfcheck import known_findings


@dataclass(frozen=True)
class TestedVersion:
    """What a backend's capability table was made on."""

    version: str
    onnx: str
    opset: int
    cases: Mapping[str, int]
    """Of the ONNX test suite, by outcome."""
    holds: bool
    """Whether that is the version installed."""
    command: str
    """That makes the table again."""


@dataclass(frozen=True)
class SelfCheckCounts:
    """What self-checks found of the version installed."""

    passed: int
    failed: Mapping[str, str]
    """By the kind of operator, why it is not used."""


@dataclass(frozen=True)
class BackendStatus:
    """A backend that is here, or why it is not."""

    name: str
    source: str
    kind: str | None
    """None of a plug-in that cannot be loaded."""
    version: str | None
    """None where it is missing."""
    reason: str = ""
    """Why it is missing, ..."""
    cure: str = ""
    """... and the command that adds it."""
    configs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By precision."""
    capabilities: TestedVersion | None = None
    self_check: SelfCheckCounts | None = None
    """None where the table holds, or there is none."""


def list_backends() -> list[BackendStatus]:
    """Every backend that bricolage or a plug-in offers, by the order of the registry. Installs nothing; a plug-in that cannot be
    loaded is listed with its error."""
    return [_look_up(name) for name in registry.names()]


def _look_up(name: str) -> BackendStatus:
    source = registry.source(name)
    try:
        backend = registry.get(name)
    except BricolageError as error:  # a broken plug-in must not hide the others
        return BackendStatus(name, source, None, None, error.sentence, error.next_step)
    status = backend.status()
    if isinstance(status, Missing):
        return BackendStatus(name, source, backend.kind, None, status.reason, status.cure)
    tested = _read_table(backend)
    return BackendStatus(
        name,
        source,
        backend.kind,
        status.version,
        configs={word: [str(config) for config in backend.configs(word, host())] for word in PRECISIONS},
        capabilities=tested,
        self_check=None if tested is None or tested.holds else _count_checks(backend),
    )


def _read_table(backend: Backend) -> TestedVersion | None:
    table = capabilities.committed_table(backend.name)
    if table is None:
        return None
    holds, command = capabilities.is_current(backend), capabilities.command(table)
    return TestedVersion(table.version, table.onnx, table.opset, dict(table.counts), holds, command)


def _count_checks(backend: Backend) -> SelfCheckCounts:
    checked = known_findings(backend)
    failed = {f"{name}-{since} {kind}": reason for (name, since, kind), reason in checked.items() if reason}
    return SelfCheckCounts(sum(not reason for reason in checked.values()), failed)
