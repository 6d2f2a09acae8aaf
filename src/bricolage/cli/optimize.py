"""`bricolage optimize`: the main job."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guarded
from bricolage.cli.values import is_artifact

if TYPE_CHECKING:
    from bricolage.plan.plan import Plan


@guarded
def optimize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, or an artifact to plan again.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The artifact; the model's name with .bricolage by default."
        ),
    ] = None,
    precision: a.Precision = "highest",
    tolerance: a.Tolerance = None,
    effort: a.Effort = "quick",
    budget: a.Budget = None,
    threads: a.Threads = None,
    backend: a.Backends = None,
    shape: a.Shapes = None,
    data: a.Inputs = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the HTML report too.")] = None,
    seed: a.Seed = 0,
    rewrite: Annotated[
        bool, typer.Option("--rewrite/--no-rewrite", help="Let rewritten variants of the model take part.")
    ] = True,
    replan: Annotated[bool, typer.Option("--replan", help="Decide afresh even where a decision is known.")] = False,
    as_json: a.Json = False,
) -> int:
    """Find the fastest verified way to run MODEL on this machine.

    Measures its parts on every installed backend, places them, races the best plans against every backend alone, and
    writes the winner as an artifact. Exit codes: 0 faster than the best single backend, 3 no significant gain (that
    backend ships), 4 accuracy not reached, 5 no backend, 2 wrong usage or a bad model, 1 a fault of bricolage.
    """
    from bricolage.cli import crash, output, progress, values

    target = out if out is not None else Path(model.with_suffix(".bricolage").name)
    options = a.options(precision, tolerance, effort, budget, threads, backend, shape, seed)
    options = dataclasses.replace(options, rewrite=rewrite)
    if not model.exists():
        raise errors.MissingFile(path=model)
    if is_artifact(model):
        options = a.with_shapes_of(model, options)
    elif target.resolve() == model.resolve():
        raise errors.BadOption(option="--output", value=target, advice="It would overwrite the model")
    if report is not None and report.resolve() in (model.resolve(), target.resolve()):
        raise errors.BadOption(option="--report", value=report, advice="It would overwrite the model or the artifact")
    inputs = None if data is None else values.read_arrays(data)
    output.check_writable(target, report)
    with output.stdout_kept(), progress.shown() as shown:
        from bricolage.api.optimize import optimize as run

        executable = run(model, options, inputs=inputs, replan=replan, progress=shown)
        plan = executable.plan
        crash.remember(plan)
        executable.save(target)
        if report is not None:
            from bricolage.cli.explain import page

            output.write_text(report, page(plan, [executable.graph(i) for i in range(len(plan.buckets))]))
    if as_json:
        from bricolage.report.summary import summary

        output.show_json(summary(plan))
    else:
        from bricolage.report.tables import result

        output.show(result(plan, output.console().width))
    output.note(f"wrote {target}" + (f" and {report}" if report is not None else ""))
    return errors.OK if any(_gains(plan)) else errors.NO_GAIN


def _gains(plan: Plan) -> list[bool]:
    return [bucket.significant and bucket.chosen != bucket.best_single for bucket in plan.buckets]
