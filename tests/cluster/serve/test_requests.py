"""Files of jobs, and requests to whoever serves."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.base import scratch
from bricolage.cli.main import app
from bricolage.cluster.serve.spool import Counter, ask
from bricolage.cluster.serve.submission import read_jobs
from tests.cluster.making import one_kind
from tests.cluster.serve.making import serving

RUN = CliRunner()
JOB = 'name = "a"\ncommand = ["true"]\nsteps = 10\nseconds = 5.0\n'


def test_a_job_runs_in_the_folder_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB + 'devices = 2\nscaling = [[1, 0.6]]\nenvironment = { A = "b" }\n')
    (spec,) = read_jobs(tmp_path / "job.toml")
    job = spec.training_job(7.0, one_kind(4))
    assert spec.directory == str(tmp_path) and job.scaling == ((1, 0.6),)
    assert (job.submit_s, job.devices, job.run_s("a")) == (7.0, 2, 5.0)
    (tmp_path / "step.toml").write_text("")
    (tmp_path / "jobs.toml").write_text("[[job]]\n" + JOB.replace('command = ["true"]', 'step = "step.toml"'))
    (spec,) = read_jobs(tmp_path / "jobs.toml")
    assert spec.command == (sys.executable, "-m", "bricolage.train.job", str(tmp_path / "step.toml"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "name"),
        (JOB + "rates = { a = 1.0 }", "either 'rates' or 'seconds'"),
        (JOB + 'step = "x"', "either 'command' or 'step'"),
        (JOB.replace('"a"', '"../a"'), "is no name of a job"),
        (JOB.replace("10", "-1"), "steps"),
        (JOB + "nodes = 3", "unknown field 'nodes'"),
        (JOB + 'directory = "none"', "there is no folder"),
        (JOB.replace('command = ["true"]', 'step = "none.toml"'), "there is no file"),
        (f"[[job]]\n{JOB}\n[[job]]\n{JOB}", "two jobs have the name 'a'"),
        (JOB + 'environment = { "A=B" = "c" }', "with '='"),
        ("name = ", "not TOML"),
    ],
)
def test_files_that_describe_no_job_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(errors.BadJob) as raised:
        read_jobs(tmp_path / "job.toml")
    assert told in str(raised.value)


def test_folders_that_others_may_write_to_are_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chmod(tmp_path / "state", 0o777)
    with pytest.raises(errors.UnsafeState, match="every user may write to it"):
        Counter(tmp_path / "state")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UnsafeState):
        Counter(tmp_path / "file")


def test_who_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with Counter(tmp_path / "state"):
        with pytest.raises(errors.NoAnswer, match="for 0 s"):
            ask(tmp_path / "state", {"list": {}}, timeout_s=0.2)
        assert list((tmp_path / "state" / "requests").iterdir()) == []
    with pytest.raises(errors.NotServed):
        ask(tmp_path / "state", {"list": {}})


def test_the_commands_of_a_user(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "job.toml").write_text(JOB.replace('"true"', '"sleep", "100"'))
    (tmp_path / "next.toml").write_text(JOB.replace('"a"', '"b"'))

    def said(*words: str) -> str:
        done = RUN.invoke(app, ["cluster", *words, "--state", str(state)])
        assert done.exit_code == 0, done.output
        return done.stdout

    def talk() -> None:
        assert said("submit", str(tmp_path / "job.toml")) == "submitted a\n"
        assert '"b"' in said("submit", str(tmp_path / "next.toml"), "--json")
        head, *rows = said("list").splitlines()
        assert head.split() == ["job", "state", "devices", "steps", "since"]
        assert [row.split()[:2] for row in rows] == [["a", "starting"], ["b", "waiting"]]
        assert said("why", "b").startswith("b: waiting; it waits for 1 more a: 0 of 1 are free")
        why = " ".join(said("why", "b").split())
        assert "It starts in" in why and "It ends in" in said("why", "a")
        assert said("cancel", "a") == "a is cancelled\n" and said("cancel", "a") == "a is over already\n"
        wrong = RUN.invoke(app, ["cluster", "why", "c", "--state", str(state)])
        assert wrong.exit_code == errors.USAGE and "there is no job 'c' here" in wrong.stderr

    serving(state, one_kind(1), "fifo", talk)
    gone = RUN.invoke(app, ["cluster", "list", "--state", str(state)])
    assert gone.exit_code == errors.USAGE and "no process serves a cluster" in gone.stderr


def test_requests_that_come_and_go_meanwhile_disturb_nobody(tmp_path: Path) -> None:
    with Counter(tmp_path / "state") as counter:
        end = time.monotonic() + 0.5

        def hurry() -> None:
            folder = tmp_path / "state" / "requests"
            while time.monotonic() < end:
                with scratch.write_whole(folder / "a") as partial:
                    partial.write_text('{"list": {}}')
                (folder / "a").unlink()

        thread = threading.Thread(target=hurry)
        thread.start()
        seen = 0
        while time.monotonic() < end:
            seen += sum(asked == {"list": {}} for _, asked in counter.requests())
        thread.join()
        assert seen
