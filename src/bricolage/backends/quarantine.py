"""What a backend got wrong in a way that its capability table does not show: found by fuzzing, kept as data, never claimed; or
claimed and computed without the optimisation that is wrong.

`quarantine.json` holds the entries. A capability table is made again from the ONNX suite when a version changes; an entry
stays until someone has seen that a newer version is right, and has told the last version that was wrong. Each entry has its
paragraph, with a script, in docs/reference/backend-bugs.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx_ir as ir

from bricolage.base.codec import decode

FILE = Path(__file__).with_name("quarantine.json")
ANY_TYPE = "*"


@dataclass(frozen=True)
class QuarantineEntry:
    """Operators that a backend does not claim, or runs without some of its optimisations, on a range of its versions."""

    backend: str
    first: str
    """The first version on which it was seen."""
    operator: str
    """As capability tables name it."""
    what: str
    """What happens, in a few words."""
    evidence: str
    """Heading of its paragraph in docs/reference/backend-bugs.md."""
    last: str | None = None
    """The last version that has it; None while none is known to be right."""
    types: str = ANY_TYPE
    """Type key of the operator, as capability tables have it."""
    where: tuple[str, ...] = ()
    """Features (`operator_features.operator_features`), all of which the operator has."""
    reads: tuple[str, ...] = ()
    """Operator types one of which makes an input of it; empty where that does not matter."""
    read_by: tuple[str, ...] = ()
    """Operator types one of which reads a result of it; empty where that does not matter."""
    without: tuple[str, ...] = ()
    """Optimisations of the backend, as it names them, without which it is right: it runs a region with the operator, and does
    without these there. Empty where only not claiming it helps."""

    def holds_for(self, backend: str, version: str | None) -> bool:
        """Whether it is about a version of a backend; about every one where the version is unknown."""
        if backend != self.backend:
            return False
        if version is None:
            return True
        version_numbers = _numbers(version)
        return _numbers(self.first) <= version_numbers and (self.last is None or version_numbers <= _numbers(self.last))

    def meets(self, node: ir.Node, operator: str, types: str, own: frozenset[str]) -> bool:
        """Whether it is about an operator, given its key, type key and features."""
        if operator != self.operator or self.types not in (ANY_TYPE, types) or not own.issuperset(self.where):
            return False
        makers = {producer.op_type for value in node.inputs if value is not None and (producer := value.producer())}
        readers = {use.node.op_type for value in node.outputs for use in value.uses()}
        return all(
            not wanted or not met.isdisjoint(wanted) for wanted, met in ((self.reads, makers), (self.read_by, readers))
        )

    @property
    def reason(self) -> str:
        """Why the operator is not claimed."""
        where = f"docs/reference/backend-bugs.md, '{self.evidence}'"
        return f"{self.operator} is in quarantine on {self.backend}: {self.what} ({where})"


@cache
def entries(backend: str, version: str | None) -> tuple[QuarantineEntry, ...]:
    """Those about an installed version of a backend.

    Raises:
        DecodeError: the file holds something else.
    """
    every = decode(tuple[QuarantineEntry, ...], json.loads(FILE.read_text(encoding="utf-8")), FILE.name)
    return tuple(entry for entry in every if entry.holds_for(backend, version))


def quarantine_digest() -> str:
    """Of all entries: what was judged under others may be judged otherwise now."""
    return hashlib.sha256(FILE.read_bytes()).hexdigest()[:8]


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, without what follows it."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()
