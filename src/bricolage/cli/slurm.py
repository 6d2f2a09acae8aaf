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
    from bricolage.cluster.slurm.advice import SlurmAdvice
    from bricolage.cluster.slurm.job_changes import AppliedChanges, SlurmChange
    from bricolage.cluster.slurm.watch import SlurmWatch

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
    watch = _watch(policy, history, days, risk, limits, True, False)
    _, advice, wanted = watch.look()
    there = {job.job: job for job in advice.jobs}
    for name in why or []:
        if name not in there:
            raise errors.BadOption(option="--why", value=name, advice="Give the number of a job that runs or waits")
    _show(advice, wanted, None, as_json)
    if not as_json:
        from bricolage.report.slurm_advice import why_sentence

        for name in why or []:
            print(errors.plain(why_sentence(there[name])))


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
    watch = _watch(policy, history, days, risk, limits, order, hold)
    advice, applied = watch.step()
    _show(advice, applied.made, applied, as_json)


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
    from bricolage.cli import output

    watcher = _watch(policy, history, days, risk, limits, order, hold)
    looks = 0

    def more() -> bool:
        nonlocal looks
        looks += 1
        if times and looks >= times:
            return False
        time.sleep(every)
        return True

    def show(advice: SlurmAdvice, applied: AppliedChanges) -> None:
        if as_json or not looks:
            _show(advice, applied.made, applied, as_json)
            return
        for change in applied.made:
            print(errors.plain(f"{time.strftime('%H:%M:%S')} job {change.job}: {change.words()}"), flush=True)
        if applied.gone:
            output.note(f"started or ended meanwhile: {', '.join(applied.gone)}")

    watcher.watch(more, show)


@app.command()
@guard_command
def restore(as_json: a.Json = False) -> None:
    """Give all jobs the limits and nice values back that they had, and release those that were held."""
    from bricolage.cluster.slurm.commands import SlurmClient
    from bricolage.cluster.slurm.watch import SlurmWatch

    applied = SlurmWatch(SlurmClient(), "easy").restore()
    if as_json:
        from bricolage.base.codec import encode
        from bricolage.cli import output

        output.show_json(encode(applied))
        return
    _show_changes(applied.made, applied)


def _watch(
    policy: str, history: Path | None, days: int, risk: float, limits: bool, order: bool, hold: bool
) -> SlurmWatch:
    from bricolage.cli import output
    from bricolage.cluster.slurm.advice import AdviceOptions
    from bricolage.cluster.slurm.commands import SlurmClient
    from bricolage.cluster.slurm.job_changes import Levers
    from bricolage.cluster.slurm.watch import SlurmWatch, past_jobs

    client = SlurmClient()
    slurm_watch = SlurmWatch(
        client,
        policy,
        AdviceOptions(risk, limits),
        Levers(limits, order, hold),
        told=lambda text: output.note(errors.plain(text)),
    )
    client.version()
    slurm_watch.history = past_jobs(client, history, days, output.note)
    return slurm_watch


def _show(
    advice: SlurmAdvice,
    wanted: list[SlurmChange] | tuple[SlurmChange, ...],
    applied: AppliedChanges | None,
    as_json: bool,
) -> None:
    from bricolage.cli import output

    if as_json:
        from bricolage.base.codec import encode

        output.show_json({"advice": encode(advice), "changes": encode(list(wanted)), "applied": applied is not None})
        return
    from bricolage.report.slurm_advice import advice_notes, advice_table, heading

    print(errors.plain(heading(advice)))
    if advice.jobs:
        output.show_result(advice_table(advice))
    for note in advice_notes(advice):
        output.note(errors.plain(note))
    if applied is None:
        message = "1 job would be changed" if len(wanted) == 1 else f"{len(wanted)} jobs would be changed"
        output.note(f"nothing was changed; {message} by `bricolage cluster slurm apply`")
        return
    _show_changes(applied.made, applied)


def _show_changes(made: tuple[SlurmChange, ...], applied: AppliedChanges) -> None:
    from bricolage.cli import output

    for change in made:
        print(errors.plain(f"job {change.job}: {change.words()}"), flush=True)
    if not made:
        output.note("nothing was to be changed")
    if applied.gone:
        output.note(f"started or ended meanwhile: {', '.join(applied.gone)}")
