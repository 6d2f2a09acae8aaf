"""`bricolage optimize`: the main job."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guarded

if TYPE_CHECKING:
    from bricolage.options import Options
    from bricolage.plan.plan import Plan


@guarded
def optimize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, or an artifact with --replan.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The artifact; the model's name with .bricolage by default."),
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
    replan: Annotated[bool, typer.Option("--replan", help="MODEL is an artifact: plan it again, for this machine.")] = False,
    as_json: a.Json = False,
) -> int:
    """Find the fastest verified way to run MODEL on this machine.

    Measures its parts on every installed backend, places them, races the best plans against every backend alone, and
    writes the winner as an artifact. Exit codes: 0 faster than the best single backend, 3 no significant gain (that backend
    ships), 4 accuracy not reached, 5 no backend, 2 wrong usage or a bad model, 1 a fault of bricolage.
    """
    from bricolage.cli import crash, output, progress, values

    target = out if out is not None else Path(model.with_suffix(".bricolage").name)
    options = a.options(precision, tolerance, effort, budget, threads, backend, shape, seed)
    if not model.exists():
        raise errors.MissingFile(path=model)
    source, before = model, None
    if replan or zipfile.is_zipfile(model):
        source, before, options = _planned(model, replan, options)
    elif target.resolve() == model.resolve() or (report is not None and report.resolve() == model.resolve()):
        raise errors.BadOption(option="--output", value=target, advice="It would overwrite the model")
    inputs = None if data is None else values.read_arrays(data)
    output.check_writable(target, report)
    with output.stdout_kept(), progress.shown() as shown:
        from bricolage.api.optimize import optimize as run

        executable = run(source, options, inputs=inputs, progress=shown)
        if before is not None:
            executable.plan = dataclasses.replace(executable.plan, model=before.model)
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


def _planned(path: Path, replan: bool, options: Options) -> tuple[Path, Plan, Options]:
    """The model inside an artifact, its old plan, and the options with the artifact's shapes unless others are given."""
    if not replan:
        raise errors.BadOption(option="MODEL", value=path, advice="It is an artifact; add --replan to plan it again")
    from bricolage.plan import artifact

    plan, directory = artifact.load(path)
    if not options.shapes:
        names = dict.fromkeys(name for bucket in plan.buckets for name in bucket.sizes)
        shapes = {name: tuple(bucket.sizes[name] for bucket in plan.buckets) for name in names}
        options = dataclasses.replace(options, shapes=shapes)
    return directory / artifact.MODEL, plan, options
