from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO

import pytest

from bricolage.cli import output
from bricolage.cli.progress_bars import show_progress
from bricolage.errors import NotWritable


def test_write_is_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    target = folder / "result"
    output.write_text(target, "old")

    def full(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(NotWritable, match="No space left on device"):
        output.write_file(target, full)
    assert target.read_text(encoding="utf-8") == "old" and list(folder.iterdir()) == [target]


def test_full_disk_is_reported() -> None:
    """A real full device: what is flushed at closing counts too."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb") as file:
        file.write(b"x")


@pytest.mark.parametrize("path", ["absent/out.html", "."])
def test_unwritable_places_are_found_before_the_work(path: str) -> None:
    with pytest.raises(NotWritable):
        output.check_writable(Path(path))


def test_check_leaves_nothing_behind() -> None:
    output.check_writable(Path("a"), None, Path("b"))
    assert list(Path().iterdir()) == []


def test_libraries_cannot_write_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with output.stdout_kept():
        print("from Python")
        os.write(1, b"from native code\n")
    output.show_json({"result": 1})
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"result": 1}
    assert "from Python" in captured.err and "from native code" in captured.err


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json({"a": float("inf"), "b": [float("nan"), 1.5], "c": (1,)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": [1]}


def test_progress_is_one_quiet_line_a_phase_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress() as progress:
        progress.start("measuring", 10)
        progress.advance(3, "conv")
        progress.advance()
        progress.start("race")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("measuring, 4: ") and lines[1].startswith("race: ")


def test_progress_on_a_terminal_shows_bars(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with show_progress() as progress:
        progress.start("measuring [x]", 10)
        progress.advance(3, "conv")
        progress.start("race")
        progress.finish()
        progress.finish()
        progress.advance()
    captured = capsys.readouterr()
    assert captured.out == "" and "measuring [x]" in captured.err and "3/3" in captured.err


def test_text_is_broken_between_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    path = "/a/path/that/is/longer/than/the/line"
    output.show_text(f"\n  Two lines [of] text-with a break\nin {path} alone")
    assert capsys.readouterr().out.splitlines() == ["", "  Two lines [of]", "  text-with a break", "in", path, "alone"]
