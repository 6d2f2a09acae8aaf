"""`bricolage cluster serve`, and what users of a served cluster ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.cluster_arguments import Machines
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.cluster_service import ServedCluster

State = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Folder of the log, requests, checkpoints; all nodes see it.")
]
FOLDER = Path("bricolage-cluster")
Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's name.", show_default=False)]


@guard_command
def serve(
    cluster: Machines,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="A policy's name.")] = "easy",
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="A Ray cluster: auto, HOST:6379, local; default: processes of this machine.",
            show_default=False,
        ),
    ] = None,
    state: State = FOLDER,
) -> None:
    """Run jobs under a policy; started again, it goes on."""
    from bricolage.api.cluster_service import ServeOptions, serve_cluster
    from bricolage.cli import output
    from bricolage.report import words

    def show(served: ServedCluster) -> None:
        devices = words.list_devices(served.devices)
        output.note(f"serving {devices} under {policy} from {state}; {words.count(served.left, 'job')} to go on with")

    serve_cluster(cluster, state, ServeOptions(policy, ray), begun=show)


@guard_command
def submit(
    job: Annotated[Path, typer.Argument(metavar="FILE", help="Jobs, as TOML or JSON.", show_default=False)],
    state: State = FOLDER,
    as_json: a.Json = False,
) -> None:
    """Submit the jobs of a file: all of them, or none."""
    from bricolage.api.cluster_service import submit_jobs

    names = submit_jobs(job, state)
    if as_json:
        _show_json({"submitted": names})
        return
    print("submitted " + ", ".join(names))


@guard_command
def list_jobs(state: State = FOLDER, as_json: a.Json = False) -> None:
    """List the jobs of a served cluster."""
    from bricolage.api.cluster_service import list_served_jobs
    from bricolage.cli import output
    from bricolage.report.served_jobs import served_table

    listed = list_served_jobs(state)
    if as_json:
        _show_json(listed)
        return
    output.show_result(served_table(listed))


@guard_command
def why(job: Job, state: State = FOLDER, as_json: a.Json = False) -> None:
    """Say why a job waits, and when it starts and ends."""
    from bricolage.api.cluster_service import explain_served_job
    from bricolage.cli import output
    from bricolage.report.served_jobs import why_served_sentence

    answer = explain_served_job(job, state)
    if as_json:
        _show_json(answer)
        return
    output.show_text(why_served_sentence(answer))


@guard_command
def cancel(job: Job, state: State = FOLDER) -> None:
    """Take a job back; if it runs, it saves and ends."""
    from bricolage.api.cluster_service import cancel_job

    print(errors.plain(f"{job} is cancelled" if cancel_job(job, state) else f"{job} is over already"))


def _show_json(answer: object) -> None:
    from bricolage.base.codec import encode
    from bricolage.cli import output

    output.show_json(encode(answer))


def add_to(app: typer.Typer) -> None:
    """Makes these commands of `bricolage cluster`."""
    for command in (serve, submit, why, cancel):
        app.command()(command)
    app.command("list")(list_jobs)
