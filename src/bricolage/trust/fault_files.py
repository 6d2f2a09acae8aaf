"""Files that show a fault: regions as models, the code of kernels, and where to look next in words."""

from __future__ import annotations

import inspect
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.errors import MissingBackend, NotWritable, Refused, UnknownFamily
from bricolage.graph.extract import extract_region, write_whole
from bricolage.graph.graph import Region
from bricolage.rewrite.catalogue import find_rule
from bricolage.trust.bisect import Diagnosis, FaultyChange
from bricolage.trust.changed_program import SubjectProgram


def write_evidence(program: SubjectProgram, found: Diagnosis, folder: Path, resources: Resources) -> tuple[Path, ...]:
    """Writes each culprit's region, and the code that its backend makes of it where it shows it, to an existing folder; the
    paths.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    written: dict[Path, None] = {}
    for culprit in found.culprits:
        i = culprit.change.region
        if i is None:
            continue
        stem = f"{''.join(c if c.isalnum() else '-' for c in found.name)}-region-{i + 1}"
        placed = program.subject.placement[i]
        target = folder / f"{stem}.onnx"
        write_whole(extract_region(Region(program.graph, placed.region)), target)
        written[target] = None
        try:
            implementation = placed.implementation
            code_report = registry.get(implementation.backend).kernel_report(
                program.models[i], implementation.config, resources, timed=False
            )
        except Refused:
            code_report = None
        if code_report is not None:
            target = folder / f"{stem}.c"
            try:
                target.write_text(code_report.source, encoding="utf-8")
            except OSError as error:
                raise NotWritable(path=target, reason=error.strerror or error) from error
            written[target] = None
    return tuple(written)


def where_next(culprit: FaultyChange) -> str:
    """Where to look, in a sentence."""
    change = culprit.change
    if change.kind == "rewrite":
        return f"{_rule(change.rule)}; `bricolage rules why {change.rule} MODEL` says where else it could start"
    assert change.implementation is not None
    name = change.implementation.backend
    try:
        backend = f"{registry.get(name).title or name} {registry.version(name)}"
    except MissingBackend:
        backend = name
    match change.kind:
        case "kernel":
            return f"kernel_{change.kernel} in the C of the region ({backend})"
        case "parameter":
            return f"the kernel that the parameter {change.parameter} is of ({backend})"
    return f"{', '.join(culprit.operators) or 'the region'} on {backend}; `bricolage reduce` makes a small model of it"


def _rule(name: str) -> str:
    """A rule and the file that holds it."""
    try:
        rule = find_rule(name)
    except (UnknownFamily, StopIteration):
        return f"rule {name}"
    return f"rule {name} in {Path(inspect.getfile(type(rule))).name}"
