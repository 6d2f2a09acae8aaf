"""`bricolage run` and `bricolage bench`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption

if TYPE_CHECKING:
    from bricolage.api.result_types import Plan

Data = Annotated[
    Path, typer.Option("--input", metavar="FILE", help="Inputs (.npz), by input name.", show_default=False)
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Outputs (.npz), by output name.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Run twice, and write when each region ran and where (Chrome, Perfetto)."
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        "--requests", metavar="N", help="Number of requests to serve; prints rate, latency and errors.", min=0
    ),
]
Concurrency = Annotated[int, typer.Option("--concurrency", metavar="N", help="Requests in flight at once.", min=1)]
Point = Annotated[
    str | None,
    typer.Option(
        "--operating-point",
        metavar="FIELDS",
        help="Operating point: streams=2,threads=1,batch=8,max_delay_ms=2,queue=64. Default: the plan's.",
    ),
]
AnyMachine = Annotated[
    bool, typer.Option("--any-machine", help="Run an artifact that was made on other hardware or versions.")
]

Contexts = Annotated[
    str | None,
    typer.Option(
        "--contexts",
        metavar="N,N",
        help="Of a language model: lengths of prompts, and in front of steps, in tokens; default: 16,2048, or the artifact's.",
    ),
]


@guard_command
def run(
    artifact: a.Artifact,
    data: Data,
    out: Output = None,
    trace: Trace = None,
    requests: Requests = 0,
    concurrency: Concurrency = 8,
    point: Point = None,
    any_machine: AnyMachine = False,
    target: a.Target = "",
    as_json: a.Json = False,
) -> None:
    """Run ARTIFACT, or the plan of a pack for this machine, once on the given inputs, or serve requests with them."""
    from bricolage.api.array_files import load_arrays
    from bricolage.api.run_artifact import RunRequest, answer_inputs
    from bricolage.cli import output
    from bricolage.report.run_results import run_json, run_parts, run_trace

    request = RunRequest(trace is not None, requests, concurrency, point)
    inputs = load_arrays(data)
    output.check_writable(out, trace)
    with output.stdout_kept():
        outcome = answer_inputs(
            artifact,
            inputs,
            request,
            any_machine=any_machine,
            target=target,
            chosen=lambda choice: output.note(f"plan '{choice.entry.target.name}', {choice.because}"),
        )
    if out is not None:
        output.write_arrays(out, outcome.outputs)
        output.note(f"wrote {out}")
    if trace is not None and outcome.traced is not None:
        output.write_text(trace, json.dumps(run_trace(outcome)))
        regions = len(outcome.traced.spans)
        output.note(f"wrote {trace}: {regions} regions; open it at https://ui.perfetto.dev or about:tracing")
    if as_json:
        output.show_json(run_json(outcome))
    else:
        output.show_parts(run_parts(outcome))


@guard_command
@a.decision_options()
def bench(
    model: a.RacedModel,
    data: a.Inputs = None,
    rival: Annotated[
        list[Path] | None,
        typer.Option(
            "--rival", metavar="ARTIFACT", help="Another artifact of the same model, to race too. Repeatable."
        ),
    ] = None,
    target: a.Target = "",
    contexts: Contexts = None,
    as_json: a.Json = False,
    *,
    options: Options,
    given: frozenset[str],
) -> None:
    """Race all backends on MODEL, with intervals and accuracy; of an artifact, its plan takes part.

    Of a pack each plan races by itself, with its target's threads, instructions, precision and memory, or that of --target alone.

    Of a language model (as `optimize` recognises it, or an artifact of one) chunks of prompts and steps race.
    """
    from bricolage.api.optimize_decoder import is_decided_as_text

    if is_decided_as_text(model, options, has_inputs=data is not None):
        unfit = {"--input": data, "--rival": rival, "--target": target}
        _bench_language_model(_DecoderBench(model, contexts, given, as_json), options, unfit)
        return
    if contexts is not None:
        raise BadOption(option="--contexts", value=contexts, advice="It is for language models: leave it out")
    from bricolage.api.bench import bench as race
    from bricolage.api.bench import planned_targets
    from bricolage.cli import crash, output, progress_bars

    options, inputs = a.open_options(model, data, options)
    raced: dict[str, Plan] = {}
    targets = planned_targets(model, target, options)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        for name, target_options in targets.items():
            raced[name] = race(model, target_options, inputs=inputs, rivals=rival or (), progress=shown, target=name)
            crash.remember(raced[name])
    if as_json:
        from bricolage.report.summary import summary

        summaries = [({"target": name} if name else {}) | summary(plan) for name, plan in raced.items()]
        output.show_json(summaries[0] if "" in raced else {"targets": summaries})
        return
    from bricolage.report.run_results import race_parts
    from bricolage.report.tables import plain_text

    for name, plan in raced.items():
        if name:
            output.show_result(plain_text(f"target '{name}'", "bold"))
        output.show_parts(race_parts(plan, output.console().width))


@dataclass(frozen=True)
class _DecoderBench:
    """What is asked for of a language model."""

    model: Path
    contexts: str | None
    given: frozenset[str]
    as_json: bool


def _bench_language_model(asked: _DecoderBench, options: Options, unfit: Mapping[str, object]) -> None:
    """Races prompts and steps. `unfit`: flags, with their values, that are for other models."""
    from bricolage.api.bench_decoder import bench_decoder
    from bricolage.api.optimize_decoder import check_decoder_options, parse_contexts
    from bricolage.cli import output, progress_bars
    from bricolage.report.decoder_tables import decoder_json, decoder_race

    check_decoder_options(options, list(unfit.items()))
    contexts = None if asked.contexts is None else parse_contexts(asked.contexts)
    with output.stdout_kept(), progress_bars.show_progress(lambda _: None) as shown:
        outcome = bench_decoder(asked.model, options, contexts, asked.given, shown)
    if asked.as_json:
        output.show_json(decoder_json(outcome.raced))
    else:
        output.show_result(decoder_race(outcome.raced, outcome.shipped))
