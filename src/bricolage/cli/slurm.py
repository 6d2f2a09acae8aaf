"""`bricolage cluster slurm`: a policy for a Slurm cluster that runs already."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.slurm_control import AppliedChanges, SlurmStep

app = typer.Typer(
    no_args_is_help=True,
    help="Predict, order and limit the jobs of a Slurm cluster.",
    rich_markup_mode=None,
)

Policy = Annotated[str, typer.Option("--policy", metavar="NAME", help="Of the replay; it orders the jobs that wait.")]
History = Annotated[
    Path | None, typer.Option("--history", metavar="FILE", help="Past jobs: sacct's output. Default: asks sacct.")
]
Days = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=3660, help="Of past jobs that sacct is asked for.")
]
Risk = Annotated[
    float,
    typer.Option("--risk", metavar="P", min=0.0001, max=0.5, help="Share of jobs that may reach a lowered limit."),
]
Limits = Annotated[bool, typer.Option("--limits/--no-limits", help="Lower time limits to what history allows.")]
Order = Annotated[bool, typer.Option("--order/--no-order", help="Set nice values in the policy's order.")]
Hold = Annotated[
    bool,
    typer.Option("--hold", help="Instead of nice values: hold jobs that are not to start, release those that are."),
]


@app.command()
@guard_command
def advise(
    policy: Policy = "easy",
    history: History = None,
    days: Days = 30,
    risk: Risk = 0.05,
    limits: Limits = True,
    why: Annotated[
        list[str] | None,
        typer.Option(
            "--why", metavar="JOB", help="Say what this job waits for, and what would let it start. Repeatable."
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Say when jobs start and end, in which order, and which limits would do. Changes nothing."""
    from bricolage.api.slurm_control import SlurmOptions, advise_slurm

    step = advise_slurm(SlurmOptions(policy, history, days, risk, limits), why=why or (), note=_note)
    _show(step, as_json)
    if not as_json:
        from bricolage.cli import output
        from bricolage.report.slurm_advice import why_sentence

        for job in step.explained:
            output.show_text(errors.plain(why_sentence(job)))


@app.command()
@guard_command
def apply(
    policy: Policy = "easy",
    history: History = None,
    days: Days = 30,
    risk: Risk = 0.05,
    limits: Limits = True,
    order: Order = True,
    hold: Hold = False,
    as_json: a.Json = False,
) -> None:
    """Set time limits and nice values once, as advised."""
    from bricolage.api.slurm_control import SlurmOptions, apply_to_slurm

    _show(apply_to_slurm(SlurmOptions(policy, history, days, risk, limits, order, hold), note=_note), as_json)


@app.command()
@guard_command
def watch(
    policy: Policy = "easy",
    history: History = None,
    days: Days = 30,
    risk: Risk = 0.05,
    limits: Limits = True,
    order: Order = True,
    hold: Hold = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Between looks.")] = 60.0,
    times: Annotated[int, typer.Option("--times", metavar="N", min=0, help="Looks; 0: until it is ended.")] = 0,
    as_json: a.Json = False,
) -> None:
    """Do so again and again; jobs that outrun what history says get their own limit back."""
    from bricolage.api.slurm_control import SlurmOptions, watch_slurm
    from bricolage.cli import output

    first = True

    def show(step: SlurmStep) -> None:
        nonlocal first
        if as_json or first:
            first = False
            _show(step, as_json)
            return
        for change in step.changes:
            print(errors.plain(f"{time.strftime('%H:%M:%S')} job {change.job}: {change.words()}"), flush=True)
        if step.applied is not None and step.applied.gone:
            output.note(f"started or ended meanwhile: {', '.join(step.applied.gone)}")

    options = SlurmOptions(policy, history, days, risk, limits, order, hold)
    watch_slurm(options, every_s=every, looks=times, show=show, note=_note)


@app.command()
@guard_command
def restore(as_json: a.Json = False) -> None:
    """Give all jobs the limits and nice values back that they had, and release those that were held."""
    from bricolage.api.slurm_control import restore_slurm

    applied = restore_slurm()
    if as_json:
        from bricolage.base.codec import encode
        from bricolage.cli import output

        output.show_json(encode(applied))
        return
    _show_changes(applied)


def _note(text: str) -> None:
    from bricolage.cli import output

    output.note(errors.plain(text))


def _show(step: SlurmStep, as_json: bool) -> None:
    from bricolage.cli import output

    if as_json:
        from bricolage.base.codec import encode

        advice, changes = encode(step.advice), encode(step.changes)
        output.show_json({"advice": advice, "changes": changes, "applied": step.applied is not None})
        return
    from bricolage.report.slurm_advice import advice_notes, advice_table, heading

    output.show_text(errors.plain(heading(step.advice)))
    if step.advice.jobs:
        output.show_result(advice_table(step.advice))
    for note in advice_notes(step.advice):
        output.note(errors.plain(note))
    if step.applied is None:
        count = len(step.changes)
        message = "1 job would be changed" if count == 1 else f"{count} jobs would be changed"
        output.note(f"nothing was changed; {message} by `bricolage cluster slurm apply`")
        return
    _show_changes(step.applied)


def _show_changes(applied: AppliedChanges) -> None:
    from bricolage.cli import output

    for change in applied.made:
        print(errors.plain(f"job {change.job}: {change.words()}"), flush=True)
    if not applied.made:
        output.note("nothing was to be changed")
    if applied.gone:
        output.note(f"started or ended meanwhile: {', '.join(applied.gone)}")
