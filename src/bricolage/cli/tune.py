"""`bricolage tune`: better kernels by search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.result_types import Tuned

_FIELDS = (*a.PROGRAM_OPTIONS, "budget_s", "ray")
_ROWS = 12
"""Kernels that are listed of one implementation."""

Technique = Annotated[
    str,
    typer.Option(
        "--technique",
        metavar="NAME",
        help="random, evolutionary, annealing, pattern, surrogate, or bandit, which chooses among these.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue the previous search; without it, its best configurations are measured again."
    ),
]
Order = Annotated[
    str,
    typer.Option(
        "--order",
        metavar="WORD",
        help="joint (with the graph, layout, fusion and backend) or sequential (the fastest of these without tuning).",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option("--trials", metavar="N", help="End a search after N choices, even if the budget allows more."),
]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML page.")]


@guard_command
@a.decision_options(*_FIELDS)
def tune(
    model: a.Model,
    data: a.Inputs = None,
    technique: Technique = "bandit",
    resume: Resume = False,
    order: Order = "joint",
    trials: Trials = None,
    report: Report = None,
    require_gain: a.RequireGain = None,
    as_json: a.Json = False,
    *,
    options: Options,
) -> int:
    """Search for kernels for MODEL that are faster on this machine than those that rules of thumb choose.

    Tunes the implementation that runs MODEL fastest, and races the result against the default kernels. Every trial is kept, also
    after Ctrl-C, and `bricolage optimize` uses them, for other models with the same layers too. Exit codes: 0 done, 3 nothing
    gains what --require-gain asks for.
    """
    from bricolage.api.array_files import load_arrays
    from bricolage.api.tune_model import TuneRequest, tune_kernels
    from bricolage.cli import output, progress_bars

    if not model.exists():
        raise errors.MissingFile(path=model)
    request = TuneRequest(order, technique, resume, trials)
    if report is not None and report.resolve() == model.resolve():
        raise errors.BadOption(option="--report", value=report, advice="It would overwrite the model")
    inputs = None if data is None else load_arrays(data)
    output.check_writable(report)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        outcome = tune_kernels(model, options, request, inputs=inputs, progress=shown)
    if report is not None:
        from bricolage.report.tuning import tuning_page

        output.write_text(report, tuning_page(outcome))
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(outcome))
    else:
        _show(outcome)
    output.note(
        f"kept for `bricolage optimize`, after {outcome.seconds:.0f} s"
        + (f"; wrote {report}" if report is not None else "")
    )
    from bricolage.report.headline import by_percent

    least = 1.0 + (require_gain or 0.0) / 100.0
    measured_gains = [
        implementation.gain for implementation in outcome.implementations if implementation.gain is not None
    ]
    gains = any(gain.low > 1.0 and gain.value >= least for gain in measured_gains)
    note = f"nothing that was found beats the default kernels{by_percent(require_gain or 0.0)}"
    return a.exit_code(require_gain, note, gains=gains)


def _show(found: Tuned) -> None:
    from bricolage.cli import output
    from bricolage.report.tuning import search_course, search_outlook, tuned_table, tuning_verdict

    for implementation in found.implementations:
        output.show_result(tuning_verdict(implementation))
        if implementation.tuned.tasks:
            output.show_result(tuned_table(implementation.tuned, _ROWS))
        for line in (search_course(implementation), search_outlook(implementation)):
            if line:
                output.show_result(line)
        output.show_result("")
