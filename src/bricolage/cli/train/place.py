"""`bricolage train place`: operators on unlike devices, by every method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
def place(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A training step with described devices (TOML, JSON), or an instance of device placement (JSON).",
            show_default=False,
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="Place by this method; repeatable. Default: all."),
    ] = None,
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            metavar="GOAL",
            help="What the kept placement is best at: sample (one sample), load (each of many), blocks.",
        ),
    ] = "sample",
    out: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="The placement as JSON.")] = None,
    limit: Annotated[
        float, typer.Option("--limit", metavar="S", min=0.1, help="Seconds for a stoppable method.")
    ] = 20.0,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds for each timing of a training step.")
    ] = 2.0,
    accelerators: Annotated[
        int | None, typer.Option("--accelerators", metavar="N", min=1, help="Of an instance, instead of the file's.")
    ] = None,
    by_hand: Annotated[
        Path | None,
        typer.Option("--by-hand", metavar="FILE", help="A placement of an instance that is judged with the others."),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run a step's placements: a process for each device.")] = False,
    as_json: a.Json = False,
) -> None:
    """Place operators on unlike devices by every method, each with its bound.

    SOURCE is a training step that describes devices, which may differ: it runs in this process for some seconds, which runs the
    Python that it names. Or it is an instance in the JSON of Tarnawski et al.: operators with times on two kinds of devices.
    """
    from bricolage.api.train_place import comparison_json, open_placement, place_operators, placement_json
    from bricolage.cli import output, progress_bars
    from bricolage.report.placements import placement_parts

    request = open_placement(source, method or ["all"], goal=goal, accelerators=accelerators, by_hand_file=by_hand)
    output.check_writable(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        comparison = place_operators(request, limit_s=limit, seconds=seconds, run=run, progress=shown)
    if out is not None:
        output.write_text(out, json.dumps(placement_json(comparison), indent=1))
        output.note(f"wrote {out}")
    if as_json:
        output.show_json(comparison_json(comparison))
        return
    output.show_parts(placement_parts(comparison))
