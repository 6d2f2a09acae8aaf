"""`bricolage optimize`: the main job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.optimize_target import TargetRequest
    from bricolage.api.result_types import Bucket, Graph, Plan

_SERVERS = 12
"""Serving configurations that are listed in addition to those that raced."""

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="The artifact; the model's name with .bricolage by default."),
]

DescribedTarget = Annotated[
    Path | None,
    typer.Option(
        "--target",
        metavar="FILE",
        help="Decide by predicted times for the device that this file describes, as for `bricolage pack`.",
    ),
]

Contexts = Annotated[
    str,
    typer.Option(
        "--contexts", metavar="N,N", help="Of a language model: lengths at which prompts and steps race, in tokens."
    ),
]
SameBits = Annotated[
    bool,
    typer.Option(
        "--same-bits/--any-bits",
        help="Of a language model: ship only what gives a text the same bits however its tokens come, or whatever is fastest.",
    ),
]
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file, a language model, or an artifact to plan again.")
]
_FOR_GRAPHS = ("--input", "--calibrate", "--evaluate", "--target", "--require-gain")
"""Of these options a language model has none."""


@guard_command
@a.decision_options()
def optimize(
    model: ModelFile,
    out: Output = None,
    data: a.Inputs = None,
    calibrate: a.Calibrate = None,
    evaluate: a.Evaluate = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the HTML report too.")] = None,
    replan: Annotated[bool, typer.Option("--replan", help="Decide again, even if a stored decision exists.")] = False,
    provisional: a.Provisional = False,
    require_gain: a.RequireGain = None,
    target: DescribedTarget = None,
    contexts: Contexts = "16,2048",
    same_bits: SameBits = True,
    as_json: a.Json = False,
    *,
    options: Options,
    given: frozenset[str],
) -> int:
    """Find the fastest verified way to run MODEL on this machine.

    Measures it and its parts on the installed backends as far as the budget reaches, places the parts, races the best plans
    against backends alone, and writes the winner as an artifact. It says how much faster that is than the best other tool,
    and than the best single configuration. Exit codes: 0 an artifact was written, 3 it was, and no plan gains what --require-gain
    asks for, 4 accuracy not reached, 5 no backend, 2 wrong usage or a bad model, 1 a fault of bricolage.

    Of a language model (GGUF, Hugging Face, ONNX with a cache) prompts and steps race, and the artifact is a folder.
    """
    from bricolage.api.optimize_decoder import is_decided_as_text

    if is_decided_as_text(model, options, has_inputs=data is not None):
        unfit = dict(zip(_FOR_GRAPHS, (data, calibrate, evaluate, target, require_gain), strict=True))
        call = _DecoderCall(model, out, contexts, same_bits, report=report, as_json=as_json)
        call = replace(call, replan=replan, provisional=provisional)
        return _optimize_language_model(call, options, unfit)
    from bricolage.api.array_files import load_arrays
    from bricolage.cli import crash, output, progress_bars

    written_to = out if out is not None else Path(model.with_suffix(".bricolage").name)
    options = _check_paths(model, written_to, report, options)
    inputs = None if data is None else load_arrays(data)
    output.check_writable(written_to, report)
    if target is not None:
        from bricolage.api.optimize_target import TargetRequest

        _refuse_gain(require_gain)
        request = TargetRequest(model, target, written_to, inputs=inputs, calibrate=calibrate, evaluate=evaluate)
        request = replace(request, replan=replan, provisional=provisional)
        return _optimize_for_target(request, options, given, report, as_json=as_json)
    with output.stdout_kept() as results:
        with progress_bars.show_progress(partial(_show_decision, results=results, as_json=as_json)) as shown:
            from bricolage.api.optimize import optimize as run

            decide = partial(run, model, options, inputs=inputs, replan=replan, provisional=provisional)
            executable = decide(progress=shown, output=written_to, calibrate=calibrate, evaluate=evaluate)
        plan = executable.plan
        crash.remember(plan)
        if report is not None:
            _write_report(report, plan, [executable.graph(i) for i in range(len(plan.buckets))])
    written = f"wrote {written_to}" + (f" and {report}" if report is not None else "")
    return _show_outcome(plan, written, require_gain, as_json=as_json)


@dataclass(frozen=True)
class _DecoderCall:
    """What is asked for of a language model."""

    model: Path
    out: Path | None
    contexts: str
    same_bits: bool
    report: Path | None
    as_json: bool
    replan: bool = False
    provisional: bool = False


def _optimize_language_model(call: _DecoderCall, options: Options, unfit: Mapping[str, object]) -> int:
    """Decides who runs prompts and steps. `unfit`: flags, with their values, that are for other models."""
    from bricolage.api.optimize_decoder import DecoderOptions, check_decoder_options, optimize_decoder, parse_contexts
    from bricolage.cli import output, progress_bars
    from bricolage.report.decoder_page import decoder_page
    from bricolage.report.decoder_tables import decoder_decision, decoder_json

    check_decoder_options(options, list(unfit.items()))
    wanted = DecoderOptions(parse_contexts(call.contexts), call.same_bits)
    folder = call.out or Path(f"{call.model.stem}.bricolage")
    output.check_writable(call.report)
    with output.stdout_kept(), progress_bars.show_progress(lambda _: None) as shown:
        decide = partial(optimize_decoder, replan=call.replan, provisional=call.provisional)
        plan = decide(call.model, folder, options, wanted, shown)
    if call.report is not None:
        output.write_text(call.report, decoder_page(plan, output.command_line()))
    if call.as_json:
        output.show_json(decoder_json(plan))
    else:
        output.show_result(decoder_decision(plan))
    output.note(f"wrote {folder}" + (f" and {call.report}" if call.report is not None else ""))
    return errors.OK


def _show_decision(bucket: Bucket, results: IO[str], *, as_json: bool) -> None:
    """A bucket's table stands there while the next one is decided."""
    from bricolage.cli import output
    from bricolage.report.tables import decision

    if not as_json:
        output.show_result(decision(bucket, output.console().width, verbose=a.verbose()), results)


def _refuse_gain(require_gain: float | None) -> None:
    """
    Raises:
        BadOption: a gain is asked for, and nothing is timed there.
    """
    if require_gain is not None:
        advice = "Times on the device of --target are predicted, and no gain is measured: leave it out"
        raise errors.BadOption(option="--require-gain", value=f"{require_gain:g}", advice=advice)


def _optimize_for_target(
    request: TargetRequest, options: Options, given: frozenset[str], report: Path | None, *, as_json: bool
) -> int:
    """Decides by predicted times, and shows them as such."""
    from bricolage.cli import crash, output, progress_bars

    with output.stdout_kept(), progress_bars.show_progress(lambda _: None) as shown:
        from bricolage.api.optimize_target import optimize_for_target

        decided = optimize_for_target(request, options, given, shown)
    plan = decided.plan
    crash.remember(plan)
    if report is not None:
        from bricolage.api.explain_plan import unpack_plans

        (opened,) = unpack_plans(request.output).values()
        _write_report(report, plan, opened.graphs())
    if as_json:
        from bricolage.report.summary import target_summary

        output.show_json(target_summary(plan, decided.entry))
    else:
        from bricolage.report.tables import decision

        for bucket in plan.buckets:
            output.show_result(decision(bucket, output.console().width, verbose=a.verbose()))
        _show(plan)
    output.note(f"wrote {request.output}" + (f" and {report}" if report is not None else ""))
    return errors.OK


def _write_report(path: Path, plan: Plan, graphs: Sequence[Graph | None]) -> None:
    from bricolage.cli import output
    from bricolage.report.html import render

    output.write_text(path, render(plan, graphs, output.command_line()))


def _show_outcome(plan: Plan, written: str, require_gain: float | None, *, as_json: bool) -> int:
    """Shows what came of it; the exit code."""
    from bricolage.cli import output
    from bricolage.report.words import constant_gains

    if as_json:
        from bricolage.report.summary import summary

        output.show_json(summary(plan))
    else:
        _show(plan)
    output.note(written)
    for line in dict.fromkeys(line for bucket in plan.buckets for line in constant_gains(bucket)):
        output.note(line)
    from bricolage.report import headline, operating_points

    percent = require_gain or 0.0
    if plan.throughput is None:
        gains = any(headline.gains(bucket, percent) for bucket in plan.buckets)
        note = headline.no_gain_sentence(plan, percent)
    else:
        gains = operating_points.gains_requests(plan.throughput, percent)
        note = operating_points.no_gain_sentence(plan.throughput, percent)
    return a.exit_code(require_gain, note, gains=gains)


def _check_paths(model: Path, target: Path, report: Path | None, options: Options) -> Options:
    """The options, with the sizes of the artifact where one is planned again.

    Raises:
        MissingFile: there is no such model.
        BadOption: something would be overwritten that is read.
    """
    from bricolage.api.artifact_options import adopt_options, is_artifact

    if not model.exists():
        raise errors.MissingFile(path=model)
    options = adopt_options(model, options)
    if not is_artifact(model) and target.resolve() == model.resolve():
        raise errors.BadOption(option="--output", value=target, advice="It would overwrite the model")
    if report is not None and report.resolve() in (model.resolve(), target.resolve()):
        raise errors.BadOption(option="--report", value=report, advice="It would overwrite the model or the artifact")
    return options


def _show(plan: Plan) -> None:
    from bricolage.cli import output
    from bricolage.report.operating_points import points_overview
    from bricolage.report.tables import header, short_header, stages

    if plan.throughput is not None:
        output.show_result(points_overview(plan.throughput, plan.operating_point, output.console().width, _SERVERS))
        output.show_result("")
    output.show_result(header(plan) if a.verbose() else short_header(plan))
    if a.verbose():
        for bucket in plan.buckets:
            output.show_result(stages(bucket))
