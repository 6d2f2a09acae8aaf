"""A cluster that is served, and asked, from Python."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bricolage.api.cluster_service import (
    ServedCluster,
    ServeOptions,
    cancel_job,
    explain_served_job,
    list_served_jobs,
    serve_cluster,
    submit_jobs,
)
from bricolage.errors import NotServed


def test_jobs_are_submitted_listed_explained_and_cancelled(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "cluster.toml").write_text('[[group]]\nkind = "a"\n')
    (tmp_path / "jobs.toml").write_text(
        "".join(
            f'[[job]]\nname = "{name}"\ncommand = ["sleep", "100"]\nsteps = 10\nseconds = 5.0\n'
            for name in ("first", "second")
        )
    )
    begun: list[ServedCluster] = []
    wrong: list[BaseException] = []

    def talk() -> None:
        try:
            assert submit_jobs(tmp_path / "jobs.toml", state) == ("first", "second")
            assert [(job.name, job.devices) for job in list_served_jobs(state).jobs] == [("first", 1), ("second", 1)]
            assert explain_served_job("second", state).reason.startswith("1 more a: 0 of 1 are free")
            assert [cancel_job("second", state), cancel_job("second", state)] == [True, False]
            assert cancel_job("first", state)
        except BaseException as error:
            wrong.append(error)

    talker = threading.Thread(target=talk)

    def begin(served: ServedCluster) -> None:
        begun.append(served)
        talker.start()

    serve_cluster(
        tmp_path / "cluster.toml", state, ServeOptions("fifo"), begun=begin, over=lambda: not talker.is_alive()
    )
    assert not wrong, wrong
    assert begun == [ServedCluster({"a": 1}, 0)]
    with pytest.raises(NotServed):
        list_served_jobs(state)
