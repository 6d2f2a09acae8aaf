"""`bricolage cluster serve`, and what users of a served cluster ask."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.cluster import Machines
from bricolage.cli.guard import guard_command

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
    from bricolage.cli import output
    from bricolage.cluster.engines.local import LocalEngine
    from bricolage.cluster.machines import read_cluster
    from bricolage.cluster.serve.service import MakeEngine, Service
    from bricolage.report import words

    spec = read_cluster(cluster)
    make: MakeEngine = LocalEngine
    if ray is not None:
        from bricolage.cluster.engines.ray_cluster import RayEngine

        make = partial(RayEngine, ray, state.resolve())
    service = Service(state, spec, policy, make)
    try:
        devices = ", ".join(f"{count} {kind}" for kind, count in spec.capacity.items())
        output.note(f"serving {devices} under {policy} from {state}; {words.count(service.left, 'job')} to go on with")
        service.serve()
    finally:
        service.close()


@guard_command
def submit(
    job: Annotated[Path, typer.Argument(metavar="FILE", help="Jobs, as TOML or JSON.", show_default=False)],
    state: State = FOLDER,
    as_json: a.Json = False,
) -> None:
    """Submit the jobs of a file: all of them, or none."""
    from bricolage.base.codec import encode
    from bricolage.cli import output
    from bricolage.cluster.serve.spool import ask
    from bricolage.cluster.serve.submission import read_jobs

    specs = read_jobs(job)
    reply = ask(state, {"submit": encode(specs)})
    if as_json:
        output.show_json(reply)
        return
    print("submitted " + ", ".join(spec.name for spec in specs))


@guard_command
def list_jobs(state: State = FOLDER, as_json: a.Json = False) -> None:
    """List the jobs of a served cluster."""
    from rich.table import Table

    from bricolage.base.codec import decode
    from bricolage.cli import output
    from bricolage.cluster.serve.job_answers import Listed
    from bricolage.cluster.serve.spool import ask
    from bricolage.report.policies import span

    reply = ask(state, {"list": {}})
    if as_json:
        output.show_json(reply)
        return
    table = Table(box=None, pad_edge=False)
    for head, side in (
        ("job", "left"),
        ("state", "left"),
        ("devices", "right"),
        ("steps", "right"),
        ("since", "right"),
    ):
        table.add_column(head, justify="right" if side == "right" else "left")
    listed = decode(Listed, reply, "answer")
    for job in listed.jobs:
        begun = job.start_s if job.state == "running" and job.start_s is not None else job.submit_s
        since = begun if job.finish_s is None else job.finish_s
        table.add_row(
            errors.plain(job.name, 40), errors.plain(job.state, 60), f"{job.devices} {job.kind}".strip(),
            f"{job.done:.0f} of {job.steps:.0f}", span(max(listed.now - since, 0.0)),
        )  # fmt: skip
    output.show_result(table)


@guard_command
def why(job: Job, state: State = FOLDER, as_json: a.Json = False) -> None:
    """Say why a job waits, and when it starts and ends."""
    from bricolage.base.codec import decode
    from bricolage.cli import output
    from bricolage.cluster.serve.job_answers import WhyAnswer
    from bricolage.cluster.serve.spool import ask
    from bricolage.report.policies import span

    answer = ask(state, {"why": job})["why"]
    if as_json:
        output.show_json(answer)
        return
    explanation = decode(WhyAnswer, answer, "answer")
    line = f"{explanation.job}: {explanation.state}"
    line += f"; it waits for {explanation.reason}" if explanation.reason else ""
    for what, at, interval in (
        ("starts", explanation.start_s, explanation.start_interval_s),
        ("ends", explanation.end_s, explanation.end_interval_s),
    ):
        if at is not None and interval is not None:
            line += f". It {what} in {span(at)} ({span(interval[0])} to {span(interval[1])}) if no other comes"
    line += f". It would start now with {explanation.change}" if explanation.change else ""
    print(errors.plain(line))


@guard_command
def cancel(job: Job, state: State = FOLDER) -> None:
    """Take a job back; if it runs, it saves and ends."""
    from bricolage.cluster.serve.spool import ask

    reply = ask(state, {"cancel": job})
    print(errors.plain(f"{job} is over already" if "over" in reply else f"{job} is cancelled"))


def add_to(app: typer.Typer) -> None:
    """Makes these commands of `bricolage cluster`."""
    for command in (serve, submit, why, cancel):
        app.command()(command)
    app.command("list")(list_jobs)
