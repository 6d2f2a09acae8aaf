"""`bricolage reduce`: the least model that shows a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage import errors
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
@a.decision_options(*a.PROGRAM_OPTIONS, "budget_s")
def reduce(
    model: a.ModelOrArtifact,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The repro; the model's name with .repro by default."),
    ] = None,
    data: a.Inputs = None,
    unclaimed: a.Unclaimed = False,
    trial: a.Trial = "60s",
    as_json: a.Json = False,
    *,
    options: Options,
    given: frozenset[str],
) -> int:
    """Write the least model, inputs and script that show a wrong answer, a crash or a hang of MODEL.

    Finds the change at fault as `bisect` does, then drops operators, shrinks dimensions and simplifies numbers and attributes as
    long as the fault stays the same. --budget is the time for that; after it or a Ctrl-C the least model so far is written.
    """
    from bricolage.cli import output, progress_bars

    options, inputs = a.open_options(model, data, options, given)
    seconds = a.positive_seconds(trial)
    target = out if out is not None else Path(model.with_suffix(".repro").name)
    existed = target.exists()
    output.make_folder(target)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        from bricolage.api.reduce import reduce as run

        try:
            repro = run(model, target, options, inputs=inputs, unclaimed=unclaimed, trial_s=seconds, progress=shown)
        finally:
            if not existed and not any(target.iterdir()):
                target.rmdir()
    from bricolage.report import faults

    if as_json:
        output.show_json(faults.reduced_json(repro))
    else:
        output.show_result(faults.render_reduction(repro))
    if repro is None:
        return errors.NO_GAIN
    output.note(f"wrote {target}")
    return errors.OK
