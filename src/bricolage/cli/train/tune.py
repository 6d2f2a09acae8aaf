"""`bricolage train tune`: hyper-parameters found by search, whose trials are trained as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.train.fuse.fuse import How
    from bricolage.train.fuse.hyperparameter_search import Searched


@guard_command
def tune(
    search: Annotated[Path, typer.Argument(metavar="SEARCH", help="A search as TOML or JSON.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="A file for the weights of the best trial.")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", metavar="N", min=1, help="Instead of the file's.")] = None,
    together: Annotated[
        int | None,
        typer.Option("--together", metavar="N", min=1, help="Trials suggested at once; overrides the file."),
    ] = None,
    how: Annotated[
        str,
        typer.Option("--how", metavar="WORD", help="How trials are trained: auto, serial or fused (see `train fuse`)."),
    ] = "auto",
    threads: a.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory limit for trials trained together (2GB); default: most of the free memory.",
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Search hyper-parameters; trials that have equal layers are trained as one.

    SEARCH names a training step, the data, ranges and a sampler. Trials that fall behind are pruned. Running it runs the Python
    that SEARCH names.
    """
    from bricolage.cli import output, progress_bars
    from bricolage.train.fuse.fuse import HOWS
    from bricolage.train.fuse.hyperparameter_search import tune as run
    from bricolage.train.fuse.search_spec import read_search

    if how not in HOWS:
        raise errors.BadOption(option="--how", value=how, advice=f"Use one of {', '.join(HOWS)}")
    search_spec = read_search(search)
    search_spec = replace(search_spec, trials=trials or search_spec.trials, together=together or search_spec.together)
    if how.endswith("processes") and search_spec.pruner != "none":
        raise errors.BadOption(
            option="--how", value=how, advice='Processes are not watched: set pruner = "none", or use fused'
        )
    limit = None if memory is None else a.memory_bytes(memory)
    output.check_writable(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        done = run(search_spec, cast("How", how), threads, shown, memory_limit=limit)
    if out is not None and done.state is not None:
        output.write_file(out, done.save)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(done.report))
        return
    _show(done.report)
    if out is not None and done.state is not None:
        output.note(f"wrote {out}")


def _show(report: Searched) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    heads = [("Trial", "left"), ("Drawn", "fold"), ("Steps", "right"), ("End", "left"), ("Held-out loss", "right")]
    heads += [("Accuracy", "right"), ("Trained", "left")]
    rows = [
        [
            trial.name + (" *" if trial.name == report.best else ""),
            ", ".join(
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in trial.drawn.items()
            ),
            str(trial.steps),
            trial.stopped,
            words.loss(trial.loss),
            words.MISSING if trial.accuracy is None else f"{trial.accuracy:.1%}",
            trial.how,
        ]
        for trial in sorted(
            report.trials, key=lambda trial: (trial.stopped != "finished", trial.loss is None, trial.loss)
        )
    ]
    output.show_result(plain_table(heads, rows))
    rate = report.samples / report.seconds
    print(
        f"\n{words.count(len(report.trials), 'trial')} in {report.seconds:.1f} s, {rate:,.0f} samples/s; * is the best"
    )
