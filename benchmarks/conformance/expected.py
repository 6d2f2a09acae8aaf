"""What need not pass: patterns of case names with the outcome that they have, the reason, and the versions for which that holds.

An entry is needed as long as every case that its patterns match has its outcome; a case that passes is taken off the list.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bricolage.conformance.attempt import Result

PATH = Path(__file__).with_name("expected.json")
_VERSIONS = ("onnx", "onnxruntime", "openvino", "torch")
_LONGEST = 200


@dataclass(frozen=True)
class Entry:
    """Cases that have another outcome than passing."""

    outcome: str
    """refuses or wrong."""
    reason: str
    versions: str
    """Of the packages that decide it, as "name version"."""
    cases: tuple[str, ...]
    """Patterns of names, as of files."""

    def matches(self, name: str) -> bool:
        """Whether a case belongs to it."""
        return any(fnmatchcase(name, pattern) for pattern in self.cases)


def entries() -> tuple[Entry, ...]:
    """The committed list."""
    return tuple(Entry(**{**one, "cases": tuple(one["cases"])}) for one in json.loads(PATH.read_text(encoding="utf-8")))


def complaints(results: Mapping[str, Result], listed: Iterable[Entry]) -> list[str]:
    """How results differ from the list, a line for each: cases that should pass and do not, cases with another outcome than listed,
    and cases that pass although they are listed, whose entry is no longer needed."""
    found: list[str] = []
    listed = tuple(listed)
    for name, result in sorted(results.items()):
        own = [entry for entry in listed if entry.matches(name)]
        if result.outcome == "passes":
            found += [
                f"{name} passes: its entry ({entry.outcome}: {entry.reason}) is no longer needed" for entry in own
            ]
        elif not any(entry.outcome == result.outcome for entry in own):
            found.append(f"{name} {result.outcome}: {result.reason}")
    return found


def compiled(results: Mapping[str, Result]) -> tuple[Entry, ...]:
    """The list that these results of the whole suite ask for."""
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, result in results.items():
        if result.outcome != "passes":
            groups[result.outcome, _generic(result.reason)].add(name)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS)
    return tuple(
        Entry(outcome, reason, versions, tuple(_patterns(own, set(results))))
        for (outcome, reason), own in sorted(groups.items())
    )


def write(listed: Iterable[Entry]) -> None:
    """Replaces the committed list."""
    PATH.write_text(json.dumps([asdict(entry) for entry in listed], indent=1) + "\n", encoding="utf-8")


def _generic(reason: str) -> str:
    """Without the names of one case's operators."""
    return re.sub(r"operator '[^']*'", "operator", reason)[:_LONGEST]


def _patterns(own: set[str], everything: set[str]) -> Iterator[str]:
    """Few patterns that match these names and no others: prefixes of whole words where all that begin so belong."""
    left = set(own)
    for name in sorted(own):
        if name not in left:
            continue
        words = name.split("_")
        for count in range(2, len(words)):
            prefix = "_".join(words[:count]) + "_"
            alike = {other for other in everything if other.startswith(prefix)}
            if len(alike) > 1 and alike <= left:
                left -= alike
                yield f"{prefix}*"
                break
        else:
            left.discard(name)
            yield name
