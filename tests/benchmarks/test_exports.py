"""Rows over exports: kept after each, shown again as they were printed, and a failure that stops no other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.rewrites.exports import Export, add_arguments, collect
from bricolage.base.codec import DecodeError
from bricolage.errors import BricolageError


@dataclass(frozen=True)
class Line:
    """A row of nothing in particular."""

    workload: str
    export: Export


def run(name: str, exported: Export) -> Line:
    if name == "dcgan":
        raise BricolageError(message="it does not")
    return Line(name, exported)


def table(rows: Sequence[Line]) -> str:
    return "\n".join(["| head |", "|---|", *(f"| {row.workload} {row.export} |" for row in rows)])


def called(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser, "exported,unoptimised")
    return collect(parser.parse_args(words), Line, run, table)


def test_what_is_kept_is_shown_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "out" / "rows.json"
    assert called("--workload", "nasrnn", "--output", str(kept)) == 0
    printed = capsys.readouterr().out
    assert called("--show", str(kept)) == 0
    shown = capsys.readouterr().out
    assert "| nasrnn exported |\n| nasrnn unoptimised |" in shown and shown.strip() in printed


def test_a_failure_is_kept_and_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "rows.json"
    assert called("--workload", "dcgan,nasrnn", "--exports", "exported", "--output", str(kept)) == 1
    assert "dcgan exported: it does not" in capsys.readouterr().out
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert [row["workload"] for row in found["rows"]] == ["nasrnn"] and len(found["failures"]) == 1


def test_a_file_with_another_word_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(
        json.dumps({"rows": [{"workload": "nasrnn", "export": "folded"}]}), encoding="utf-8"
    )
    with pytest.raises(DecodeError, match="exported, unoptimised"):
        called("--show", str(tmp_path / "rows.json"))
