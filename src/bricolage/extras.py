"""What bricolage's extras need, as commands that work however bricolage was installed: it is in no registry, so that
`pip install bricolage[...]` would look for a stranger's package."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

_NAME = "bricolage"
_OF_EXTRA = re.compile(
    r"""(?P<requirement>[^;]+?)\s*;\s*(?:(?P<marker>.+?)\s+and\s+)?extra\s*==\s*["'](?P<extra>[^"']+)["']\s*$"""
)
"""A line of a package's metadata."""
_OWN = re.compile(rf"{_NAME}\s*\[(?P<extras>[^\]]+)\]")
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def install_command(*extras: str) -> str:
    """A command that adds what some extras need: `pip install 'onnxruntime>=1.23'`. Where neither metadata nor sources know an
    extra, words that say where it stands."""
    needed = dict.fromkeys(requirement for extra in extras for requirement in requirements(extra))
    if not needed:
        return f"look up the extra {' or '.join(extras)} in bricolage's pyproject.toml"
    return " ".join(["pip install", *(f"'{package}'" for package in needed)])


@cache
def requirements(extra: str) -> tuple[str, ...]:
    """Requirements of an extra with their versions, those of the extras that it consists of included; none for an unknown one."""
    by_extra = {**_of_sources(), **_read_metadata()}
    return tuple(dict.fromkeys(_whole(extra, by_extra)))


def _whole(extra: str, known: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for requirement in known.get(extra, ()):
        extras_match = _OWN.fullmatch(requirement)
        if extras_match is None:
            yield requirement
            continue
        for name in extras_match["extras"].split(","):
            yield from _whole(name.strip(), known)


def _read_metadata() -> dict[str, list[str]]:
    """By extra, as the installed package's metadata say; empty where it runs from sources that nothing was installed from."""
    from importlib import metadata  # here, since it takes longer to import than all of an artifact's run

    try:
        lines = metadata.requires(_NAME) or []
    except metadata.PackageNotFoundError:
        return {}
    by_extra: dict[str, list[str]] = {}
    for line in lines:
        of_extra = _OF_EXTRA.match(line)
        if of_extra is not None:
            marker = (of_extra["marker"] or "").replace("'", '"')
            requirement = of_extra["requirement"] + (f"; {marker}" if marker else "")
            by_extra.setdefault(of_extra["extra"], []).append(requirement)
    return by_extra


def _of_sources() -> dict[str, list[str]]:
    """By extra, as the project's file says in a checkout."""
    if not _PROJECT.exists():
        return {}
    import tomllib

    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    by_extra: dict[str, list[str]] = project["optional-dependencies"]
    return {extra: [requirement.replace("'", '"') for requirement in needed] for extra, needed in by_extra.items()}
