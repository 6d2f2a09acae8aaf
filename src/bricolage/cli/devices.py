"""`bricolage schedule --devices`: predicted schedules on devices that a file describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.errors import BadOption

if TYPE_CHECKING:
    from bricolage.api.result_types import Simulated

_MOST_ROWS = 60
"""Sub-graphs that are shown; --json has them all."""
_MOST_COLUMNS = 4
"""Methods whose devices are shown, the best first."""


def predict(
    artifact: Path,
    devices: Path,
    data: Path | None,
    *,
    simulate: bool,
    trace: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Shows what each method makes of the devices, and writes the best schedule's trace.

    Raises:
        BadOption: something else than a prediction is asked for.
        MissingFile, BadDevices, ...: as `simulate_devices`.
    """
    from bricolage.api.array_files import load_arrays
    from bricolage.cli import output

    if not simulate:
        raise BadOption(
            option="--devices", value=str(devices), advice="Nothing runs on devices that are described: add --simulate"
        )
    if out is not None:
        raise BadOption(option="-o", value=str(out), advice="With --simulate no artifact is written; leave it out")
    inputs = None if data is None else load_arrays(data)
    output.check_writable(trace)
    with output.stdout_kept():
        from bricolage.api.devices import simulate_devices

        simulation = simulate_devices(artifact, devices, inputs)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(simulation))
    else:
        _show(simulation)
    if trace is not None:
        from bricolage.report.perfetto import predicted_trace

        best = simulation.predicted[0]
        names = [
            "inputs",
            *(f"{n} {sub_graph.title}".rstrip() for n, sub_graph in enumerate(simulation.sub_graphs, 1)),
            "outputs",
        ]
        output.write_text(trace, json.dumps(predicted_trace(artifact.stem, names, best.schedule, best.moves)))
        output.note(
            f"wrote {trace}: the schedule by {best.method}; open it at https://ui.perfetto.dev or about:tracing"
        )


def _show(found: Simulated) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    heads = [("Sub-graph", "right"), ("Operators", "fold"), ("Here", "right")]
    heads += [(prediction.method, "left") for prediction in found.predicted[:_MOST_COLUMNS]]
    rows = [
        [
            str(number),
            sub_graph.title,
            words.milliseconds(min(sub_graph.measured_ms.values())),
            *(prediction.schedule.intervals[number].device for prediction in found.predicted[:_MOST_COLUMNS]),
        ]
        for number, sub_graph in list(enumerate(found.sub_graphs, 1))[:_MOST_ROWS]
    ]
    output.show_result(plain_table(heads, rows))
    if len(found.sub_graphs) > _MOST_ROWS:
        output.show_result(f"and {len(found.sub_graphs) - _MOST_ROWS} more sub-graphs: --json has them all")
    summary = [
        ("Method", "left"),
        ("Predicted", "right"),
        ("Above the bound", "right"),
        ("Never above (NEW-B-2)", "right"),
    ]
    methods = [
        [
            prediction.method + (", proven to be shortest" if prediction.proven else ""),
            words.milliseconds(prediction.makespan_ms),
            words.percent(max(0.0, prediction.makespan_ms / found.lower_ms - 1.0) if found.lower_ms else None),
            words.milliseconds(prediction.upper_ms),
        ]
        for prediction in found.predicted
    ]
    output.show_result(plain_table(summary, methods))
    output.show_result(
        f"{words.count(len(found.sub_graphs), 'sub-graph')} on {words.count(len(found.devices), 'described device')}: no schedule "
        f"takes less than {words.milliseconds(found.lower_ms)} by these times"
    )
    if found.pipelined is not None:
        several = len(set(found.pipelined.devices))
        output.show_result(
            f"With samples one behind another: {words.milliseconds(found.pipelined.sample_ms)} each on the busiest of "
            f"{words.count(several, 'device')}; no cut of the graph gives less than {words.milliseconds(found.pipelined.bound_ms)}"
        )
