"""`bricolage train plan`, `run` and `report`: one training step on several devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.train.run.document import TrainingPlan
    from bricolage.train.run.launch_plan import PlanResult

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
    from bricolage.cli import output, progress_bars
    from bricolage.report import parallel
    from bricolage.train.pipeline.search import ASYNCHRONOUS, PLANNED
    from bricolage.train.run.document import PLAN, write_plan
    from bricolage.train.run.planning import plan_step
    from bricolage.train.step.spec import read_spec

    for name in schedule or ():
        if name not in (*PLANNED, *ASYNCHRONOUS):
            choices = ", ".join((*PLANNED, *ASYNCHRONOUS))
            raise errors.BadOption(option="--schedule", value=name, advice=f"Use one of {choices}")
    step_spec = read_spec(spec)
    output.make_folder(out)
    output.check_writable(out / PLAN)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        training_plan = plan_step(step_spec, schedules=tuple(schedule or PLANNED), seconds=seconds, progress=shown)
    write_plan(training_plan, out)
    output.write_text(out / "report.html", parallel.parallel_page(training_plan))
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(training_plan))
        return
    _show_plan(training_plan)
    output.note(f"wrote {out / PLAN}, schedule.csv and report.html")


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
    from bricolage.cli import output
    from bricolage.report import parallel
    from bricolage.train.run.document import RESULT, read_training_plan
    from bricolage.train.run.launch_plan import launch_plan
    from bricolage.train.run.ray_launch import run_on_ray

    training_plan, _ = read_training_plan(folder)
    output.check_writable(folder / RESULT)
    with output.stdout_kept():
        done: PlanResult | None
        if ray is not None:
            done = run_on_ray(folder, ray, seconds=seconds, timeout_s=timeout, pipelines=pipelines)
        else:
            done = launch_plan(folder, seconds=seconds, timeout_s=timeout, pipelines=pipelines)
    assert done is not None
    output.write_text(folder / "report.html", parallel.parallel_page(training_plan, done))
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(done))
        return
    _show_result(done)
    output.note(f"wrote {folder / RESULT} and report.html")


@guard_command
def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: report.html in it.")
    ] = None,
) -> None:
    """Write the page of a plan again: with what was measured, where it was run."""
    from bricolage.cli import output
    from bricolage.report import parallel
    from bricolage.train.run.document import read_training_plan
    from bricolage.train.run.launch_plan import read_result

    training_plan, _ = read_training_plan(folder)
    place = out or folder / "report.html"
    output.write_text(place, parallel.parallel_page(training_plan, read_result(folder)))
    output.note(f"wrote {place}")


def _show_plan(made: TrainingPlan) -> None:
    from bricolage.cli import output
    from bricolage.report import parallel, words

    print(f"{made.step.module}, {made.step.batch_size} samples a step, on {made.devices}\n")
    output.show_result(parallel.plan_table(made))
    print(f"\nNo plan takes less than {words.milliseconds(made.bound_ms)}.")
    for change in made.changes:
        print(f"With {change.change}: {words.milliseconds(change.step_ms)} ({parallel.plan_words(change.plan)})")
    for note in made.notes:
        print(note)


def _show_result(done: PlanResult) -> None:
    from bricolage.cli import output
    from bricolage.report import parallel

    output.show_result(parallel.result_table(done))
    for line in parallel.result_words(done):
        print(line)
