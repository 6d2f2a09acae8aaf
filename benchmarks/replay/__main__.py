"""Compares what is decided now with what is on record, or with another commit.

    python -m benchmarks.replay                    compare with the digests on record (benchmarks/replay/digests.json)
    python -m benchmarks.replay --accept           put the digests of now on record; the commit says why they changed
    python -m benchmarks.replay --against REF      compare line by line with another commit of this repository

Texts of all records go to out/replay, a file for each model and section. Exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.replay.models import MODELS
from benchmarks.replay.record import pin_environment, record

DIGESTS = Path(__file__).with_name("digests.json")
_SHOWN = 40
_ROOT = Path(__file__).resolve().parents[2]

Records = Mapping[str, Mapping[str, list[str]]]
"""Lines by model and section."""


def main() -> int:
    """Records, compares, and says what differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description="process replay")
    parser.add_argument("--accept", action="store_true", help="put the digests of now on record")
    parser.add_argument("--against", metavar="REF", help="compare line by line with another commit")
    parser.add_argument("--output", type=Path, default=Path("out/replay"), help="folder for the texts")
    given = parser.parse_args()
    pin_environment()
    records = {name: record(build()) for name, build in MODELS.items()}
    write(records, given.output)
    if given.against:
        return against(given.against, given.output)
    found = digests(records)
    if given.accept:
        DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    known = json.loads(DIGESTS.read_text(encoding="utf-8"))
    changed = [
        f"{model} {section}"
        for model in sorted({*known, *found})
        for section in sorted({*known.get(model, {}), *found.get(model, {})})
        if known.get(model, {}).get(section) != found.get(model, {}).get(section)
    ]
    for name in changed:
        print(f"differs: {name}")
    if changed:
        print("python -m benchmarks.replay --against REF shows the lines; --accept puts what is new on record")
    else:
        print(f"replay: {sum(map(len, found.values()))} records of {len(found)} models are as on record")
    return 1 if changed else 0


def write(records: Records, folder: Path) -> None:
    """Writes every record as a text."""
    for model, sections in records.items():
        for section, lines in sections.items():
            path = folder / model / f"{section}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def digests(records: Records) -> dict[str, dict[str, str]]:
    """A hash of each record."""
    return {
        model: {
            section: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] for section, lines in sections.items()
        }
        for model, sections in records.items()
    }


def against(commit: str, own: Path) -> int:
    """Records with the code of another commit and shows the lines that differ; 1 where there are any."""
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        tree, theirs = Path(folder) / "tree", Path(folder) / "texts"
        subprocess.run(["git", "worktree", "add", "--detach", "-q", str(tree), commit], cwd=_ROOT, check=True)
        try:
            code = (
                "import runpy, sys; sys.path[:0] = ['.', 'src']; "
                "runpy.run_module('benchmarks.replay', run_name='__main__', alter_sys=True)"
            )
            subprocess.run([sys.executable, "-c", code, "--output", str(theirs)], cwd=tree, check=False)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=_ROOT, check=True)
        return compare(theirs, own)


def compare(before: Path, after: Path) -> int:
    """Prints the differences of two folders of texts; 1 where there are any."""
    names = sorted({p.relative_to(root) for root in (before, after) for p in root.rglob("*.txt")})
    differs = 0
    for name in names:
        old, new = (
            (root / name).read_text(encoding="utf-8").splitlines() if (root / name).exists() else []
            for root in (before, after)
        )
        if old != new:
            differs = 1
            lines = list(difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", lineterm="", n=1))
            print("\n".join(lines[:_SHOWN]), f"\n... {len(lines) - _SHOWN} more lines" if len(lines) > _SHOWN else "")
    if not differs:
        print(f"replay: {len(names)} records are equal")
    return differs


if __name__ == "__main__":
    sys.exit(main())
