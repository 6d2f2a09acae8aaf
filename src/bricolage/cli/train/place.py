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
            metavar="SPEC|INSTANCE",
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
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The kept placement as JSON.", show_default=False),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", metavar="S", min=0.1, help="Seconds for each method that can be stopped.")
    ] = 20.0,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds for each timing of SPEC.")
    ] = 2.0,
    accelerators: Annotated[
        int | None,
        typer.Option("--accelerators", metavar="N", min=1, help="Of INSTANCE, instead of the number in the file."),
    ] = None,
    by_hand: Annotated[
        Path | None,
        typer.Option("--by-hand", metavar="FILE", help="A placement of INSTANCE that is judged with the others."),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Place operators on unlike devices by every method, each with its bound.

    SPEC names a training step and describes devices, which may differ in speed, memory and links. The step runs in this process for
    some seconds to time its operators, which runs the Python that SPEC names. INSTANCE has operators with their times on
    accelerators and processors, in the JSON of Tarnawski et al.
    """
    from bricolage.api.train_place import comparison_json, open_placement, place_operators, placement_json
    from bricolage.cli import output, progress_bars
    from bricolage.report.placements import placement_parts

    request = open_placement(source, method or ["all"], goal=goal, accelerators=accelerators, by_hand_file=by_hand)
    output.check_writable(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        comparison = place_operators(request, limit_s=limit, seconds=seconds, progress=shown)
    if out is not None:
        output.write_text(out, json.dumps(placement_json(comparison), indent=1))
    if as_json:
        output.show_json(comparison_json(comparison))
    else:
        output.show_parts(placement_parts(comparison))
    if out is not None:
        output.note(f"wrote {out}")
