"""`bricolage bisect`: which change makes an answer wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage import errors
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
@a.decision_options(*a.PROGRAM_OPTIONS)
def bisect(
    model: a.ModelOrArtifact,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the faulty regions and the C of their kernels."),
    ] = None,
    data: a.Inputs = None,
    unclaimed: a.Unclaimed = False,
    trial: a.Trial = "60s",
    as_json: a.Json = False,
    *,
    options: Options,
    given: frozenset[str],
) -> int:
    """Find what makes an answer wrong: a rewrite rule, a region on its backend, a fused kernel or a tuned parameter.

    Of an ARTIFACT it looks into what the plan runs; of a MODEL, into the whole of it on each backend. A program that is wrong,
    crashes or hangs is bisected over all its changes; each culprit is shown with the error without it and with it.
    """
    from bricolage.cli import output, progress_bars

    options, inputs = a.open_options(model, data, options, given)
    seconds = a.positive_seconds(trial)
    if out is not None:
        output.make_folder(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        from bricolage.api.bisect import bisect as run

        programs = run(model, options, inputs=inputs, unclaimed=unclaimed, trial_s=seconds, output=out, progress=shown)
    from bricolage.report import faults

    if as_json:
        output.show_json(faults.bisected_json(programs))
    else:
        output.show_result(faults.render_bisection(programs))
    if not programs:
        raise errors.NoBackend(why=" that claims an operator of this model")
    return errors.INACCURATE if any(program.diagnosis.faulty for program in programs) else errors.OK
