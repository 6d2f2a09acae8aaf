"""Folders for a while: in use they stay, left behind they go."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bricolage.base import scratch

_HOLDER = """
import sys, time
from pathlib import Path
from bricolage.base import scratch
folder = scratch.make(Path(sys.argv[1]), "run-")
(folder / "weights").write_bytes(bytes(1000))
print(folder, flush=True)
time.sleep(60)
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(parent)], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_and_what_a_living_one_holds_stays(tmp_path: Path) -> None:
    killed, left = holder(tmp_path)
    living, held = holder(tmp_path)
    try:
        killed.kill()
        killed.wait()
        assert left.is_dir() and held.is_dir()
        mine = scratch.make(tmp_path, "run-")
        assert not left.exists() and (held / "weights").exists() and mine.is_dir()
        scratch.sweep(tmp_path, "run-")
        assert mine.is_dir(), "nor does a process sweep its own"
        scratch.remove(mine)
        assert not mine.exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    scratch.sweep(tmp_path, "run-")
    assert not list(tmp_path.iterdir())


def test_other_names_and_links_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "run-link").symlink_to(elsewhere)
    (parent / "run-file").touch()
    (parent / "other").mkdir()
    scratch.sweep(parent, "run-")
    assert elsewhere.is_dir() and {path.name for path in parent.iterdir()} == {"run-link", "run-file", "other"}


def test_a_forked_process_removes_nothing_of_its_parent(tmp_path: Path) -> None:
    folder = scratch.make(tmp_path)
    child = os.fork()
    if child == 0:
        scratch.remove(folder)
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    scratch.remove(folder)
    assert not folder.exists()


@pytest.mark.parametrize("when", ["gone", "locked", "renewed"])
def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made, real, sweeper = list[Path](), tempfile.mkdtemp, list[int]()

    def mkdtemp(prefix: str, dir: Path) -> str:
        folder = Path(real(prefix=prefix, dir=dir))
        made.append(folder)
        if len(made) == 1:
            if when == "gone":
                folder.rmdir()
            else:
                sweeper.append(os.open(folder, os.O_RDONLY))
                fcntl.flock(sweeper[0], fcntl.LOCK_EX)
                if when == "renewed":
                    fcntl.flock(sweeper[0], fcntl.LOCK_UN)
                    monkeypatch.setattr(scratch, "_is_at", lambda *_: len(made) > 1)
        return str(folder)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    folder = scratch.make(tmp_path)
    assert len(made) == 2 and folder == made[1] and folder.is_dir()
    scratch.remove(folder)
    for descriptor in sweeper:
        os.close(descriptor)


def test_an_ordinary_end_leaves_nothing(tmp_path: Path) -> None:
    process, folder = holder(tmp_path)
    process.send_signal(signal.SIGINT)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    "folder",
    [
        "bricolage.base.scratch.temporary()",
        "bricolage.plan.artifact._temporary(os.getpid())",
        "bricolage.backends.inductor._workplace(os.getpid())",
    ],
)
def test_what_a_killed_process_kept_among_temporary_files_goes(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = folder.partition("(")[0].rpartition(".")[0]
    script = f"import os, {module}\nprint({folder}, flush=True)\nos.kill(os.getpid(), 9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        encoding="utf-8",
    )
    left = Path(ran.stdout.strip())
    assert left.is_dir() and left.parent == tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = scratch.temporary()
    assert list(tmp_path.iterdir()) == [own]
    scratch.remove(own)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    with scratch.write_whole(path) as partial:
        partial.write_text("new", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    with pytest.raises(ZeroDivisionError), scratch.write_whole(path) as partial:
        partial.write_text("half", encoding="utf-8")
        raise ZeroDivisionError
    with scratch.write_whole(path):
        pass  # nothing was written
    assert path.read_text(encoding="utf-8") == "new"
    assert [left.name for left in tmp_path.iterdir()] == ["report.html"]
