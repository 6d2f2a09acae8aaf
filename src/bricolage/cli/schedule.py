"""`bricolage schedule`: regions of a plan side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption

if TYPE_CHECKING:
    from bricolage.api.result_types import Scheduled


@guard_command
def schedule(
    artifact: a.Artifact,
    data: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Inputs (.npz), by input name.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The artifact with its schedule.", show_default=False),
    ] = None,
    devices: Annotated[
        Path | None,
        typer.Option("--devices", metavar="FILE", help="Devices that a file describes (TOML, JSON)."),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Only predict each method's schedule on --devices; nothing is written.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write the best predicted schedule of --devices (Chrome, Perfetto)."
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Try to run regions of ARTIFACT in parallel on separate cores; write a schedule only if it is faster.

    Times every region on one core, two, four and so on, lets each method propose a schedule, and races the most promising one
    against the plan as it is. Run it on a quiet machine. With --devices and --simulate: where the sub-graphs of ARTIFACT would run
    on these devices, and how long that is predicted to take.
    """
    if devices is not None:
        from bricolage.cli.devices import predict

        predict(artifact, devices, data, simulate=simulate, trace=trace, out=out, as_json=as_json)
        return
    for option, value in (("--simulate", simulate), ("--trace", trace)):
        if value:
            raise BadOption(option=option, value=str(value), advice="Describe devices with --devices FILE")
    if data is None:
        raise BadOption(option="--input", value="", advice="Regions are timed on inputs: give a file of them (.npz)")
    if out is None:
        raise BadOption(option="-o", value="", advice="Name the file that the artifact with its schedule goes to")
    from bricolage.api.array_files import load_arrays
    from bricolage.cli import output

    inputs = load_arrays(data)
    output.check_writable(out)
    with output.stdout_kept():
        from bricolage.api.schedule import schedule as search

        outcome = search(artifact, inputs, out)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(outcome))
    else:
        _show(outcome)
    if outcome.kept:
        output.note(f"wrote {out}")


def _show(found: Scheduled) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    if not found.proposals:
        output.show_result(
            f"nothing to run side by side: {words.count(found.regions, 'region')} on {words.count(found.cores, 'core')}"
        )
        return
    heads = [("Method", "left"), ("Predicted", "right"), ("Memory shared", "right"), ("Above the bound", "right")]
    rows = [
        [
            proposal.method,
            words.milliseconds(proposal.makespan_ms),
            words.milliseconds(proposal.simulated_ms),
            words.percent(proposal.makespan_ms / found.lower_ms - 1.0 if found.lower_ms else None),
        ]
        for proposal in found.proposals
    ]
    output.show_result(plain_table(heads, rows))
    output.show_result(
        f"{words.count(found.regions, 'region')} on {words.count(found.cores, 'core')}: no schedule takes less than "
        f"{words.milliseconds(found.lower_ms)}; with one core a region, none without needless gaps takes more than "
        f"{words.milliseconds(found.new_b_2_ms)} (NEW-B-2; NEW-B-1 {words.milliseconds(found.new_b_1_ms)})"
    )
    if found.speedup is None:
        output.show_result("one after the other is predicted to be fastest: nothing was written")
        return
    ratio = f"{found.speedup.value:.3f} [{found.speedup.low:.3f}, {found.speedup.high:.3f}]"
    verdict = "written" if found.kept else "not written: it must win by more than the noise and more than 2 %"
    output.show_result(
        f"{found.proposals[0].method} measured {words.milliseconds(found.measured_ms)}, {ratio} times as fast as the plan as it "
        f"is; {verdict}"
    )
