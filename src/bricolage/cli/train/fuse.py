"""`bricolage train fuse`: a sweep of small models trained as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.train.fuse.fuse import FusedSweep, How, Swept


@guard_command
def fuse(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep as TOML or JSON.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="A folder for the weights: LANE.pt for each model."),
    ] = None,
    how: Annotated[
        str,
        typer.Option(
            "--how",
            metavar="WORD",
            help="auto times the ways and takes the fastest; or serial, fused, processes, fused-processes.",
        ),
    ] = "auto",
    threads: a.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory limit for models trained together (2GB); default: most of the free memory.",
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Train many small models as one; each comes out as if trained alone.

    SWEEP names a training step, the data, and lanes with hyper-parameters of their own. Lanes of equal layers and shapes are
    trained as one where that is fastest here; the others one by one, and the table says why. Running it runs the Python that it
    names.
    """
    from bricolage.cli import output, progress_bars
    from bricolage.train.fuse.fuse import HOWS, train_sweep
    from bricolage.train.fuse.sweep import read_sweep

    if how not in HOWS:
        raise errors.BadOption(option="--how", value=how, advice=f"Use one of {', '.join(HOWS)}")
    sweep_spec = read_sweep(sweep)
    limit = None if memory is None else a.memory_bytes(memory)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "lane.pt")
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        done = train_sweep(sweep_spec, cast("How", how), threads, shown, memory_limit=limit)
    if out is not None:
        _save(done, out)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(done.report))
        return
    _show(done.report)
    if out is not None:
        output.note(f"wrote the weights of {len(done.states)} models to {out}")


def _save(done: FusedSweep, out: Path) -> None:
    from bricolage.cli import output

    for name in done.states:
        output.write_file(out / f"{name}.pt", lambda file, name=name: done.save(name, file))  # type: ignore[misc]


def _show(report: Swept) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    heads = [("Lane", "fold"), ("Steps", "right"), ("End", "left"), ("Loss", "right")]
    heads += [("Held-out loss", "right"), ("Accuracy", "right")]
    rows = [
        [
            lane.name,
            str(lane.steps),
            lane.stopped,
            words.loss(lane.loss),
            words.loss(lane.held_out_loss),
            words.MISSING if lane.accuracy is None else f"{lane.accuracy:.1%}",
        ]
        for lane in report.lanes
    ]
    output.show_result(plain_table(heads, rows))
    for group in report.groups:
        print(f"\n{words.count(len(group.lanes), 'lane')} trained {group.how} in {group.seconds:.1f} s: {group.reason}")
        if group.speeds:
            heads = [("", "left"), ("Samples/s", "right"), ("95 % interval", "right")]
            speeds = sorted(group.speeds.items(), key=lambda item: -item[1].median)
            rows = [[name, f"{speed.median:,.0f}", f"{speed.low:,.0f}-{speed.high:,.0f}"] for name, speed in speeds]
            output.show_result(plain_table(heads, rows))
