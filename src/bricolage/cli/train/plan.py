"""`bricolage train plan`, `run` and `report`: one training step on several devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Folder = Annotated[Path, typer.Argument(metavar="PLAN", help="The folder of a plan.", show_default=False)]


@guard_command
def plan(
    spec: Annotated[
        Path,
        typer.Argument(metavar="SPEC", help="A training step as TOML or JSON, with its devices.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A folder for the plan.")],
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="Try this schedule; repeatable. Default: all with one update a batch.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds for each measurement.")
    ] = 2.0,
    as_json: a.Json = False,
) -> None:
    """Plan a training step on several devices: data parallelism, or stages of a pipeline and their replicas.

    SPEC names a training step and its devices: processes here, or described ones. The step runs in this process for some seconds to
    time its operators, which runs the Python that SPEC names. DIR gets plan.json, schedule.csv and report.html.
    """
    from bricolage.api.train_plan import open_planning, plan_file, plan_on_devices
    from bricolage.base.codec import encode
    from bricolage.cli import output, progress_bars
    from bricolage.report import parallel

    request = open_planning(spec, schedule)
    output.make_folder(out)
    output.check_writable(plan_file(out))
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        training_plan = plan_on_devices(request, out, seconds=seconds, progress=shown)
    output.write_text(out / "report.html", parallel.parallel_page(training_plan))
    if as_json:
        output.show_json(encode(training_plan))
        return
    output.show_parts(parallel.plan_parts(training_plan))
    output.note(f"wrote {plan_file(out)}, schedule.csv and report.html")


@guard_command
def run(
    folder: Folder,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.0, help="Seconds for the race.")] = 8.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=1.0, help="Seconds for which a process waits for another.")
    ] = 120.0,
    pipelines: Annotated[
        int, typer.Option("--pipelines", metavar="N", min=0, help="Pipelines in the race: the fastest as predicted.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run its processes on the nodes of this Ray cluster (auto, HOST:6379), or local for one of this machine.",
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Run a plan of a training step on this machine, in turns with plain data parallelism and a single process.

    Gradients are compared with those of the single process. Then all ways take turns, and the fastest is kept. Weights are not
    trained: steps have a learning rate of zero. On several machines: `torchrun ... -m bricolage.train run PLAN` on each.
    """
    from bricolage.api.train_run import open_plan, race_plan, result_file
    from bricolage.base.codec import encode
    from bricolage.cli import output
    from bricolage.report import parallel

    training_plan = open_plan(folder)
    output.check_writable(result_file(folder))
    with output.stdout_kept():
        done = race_plan(folder, seconds=seconds, timeout_s=timeout, pipelines=pipelines, ray=ray)
    output.write_text(folder / "report.html", parallel.parallel_page(training_plan, done))
    if as_json:
        output.show_json(encode(done))
        return
    output.show_parts([parallel.result_table(done), *parallel.result_words(done)])
    output.note(f"wrote {result_file(folder)} and report.html")


@guard_command
def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: report.html in it.")
    ] = None,
) -> None:
    """Write the page of a plan again: with what was measured, where it was run."""
    from bricolage.api.train_run import open_plan, open_result
    from bricolage.cli import output
    from bricolage.report import parallel

    training_plan = open_plan(folder)
    place = out or folder / "report.html"
    output.write_text(place, parallel.parallel_page(training_plan, open_result(folder)))
    output.note(f"wrote {place}")
