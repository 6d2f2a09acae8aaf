"""`bricolage train replicas`: one model trained by several workers, kept in step by one of several methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guarded

if TYPE_CHECKING:
    from bricolage.train.replicas.replica_spec import Replicas
    from bricolage.train.replicas.replicas import ReplicasResult

Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="KIND",
        help="Instead of the file's methods: allreduce, bsp, asp, ssp, easgd, adpsgd, "
        "gosgd, local, postlocal. May be given several times.",
    ),
]


@guarded
def replicas(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Training by replicas, as TOML or JSON.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="A folder for the weights: METHOD.pt for each method."),
    ] = None,
    method: Methods = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, max=64, help="Instead of the file's.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, help="Threads of each worker; default: cores divided by workers."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, max=100, help="Runs of each method, with different seeds.")
    ] = 1,
    straggler: Annotated[
        float | None,
        typer.Option("--straggler", metavar="MS", min=0.0, help="Delay added to each step of the last worker."),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Train one model on several workers, by one method or by several to compare.

    SPEC names a training step, the data, how many workers, and methods. Printed are accuracy, time, samples/s and bytes sent, and
    accuracy by the time at which the fastest was done. Running it runs the Python that SPEC names.
    """
    from bricolage.cli import output, progress_bars
    from bricolage.train.replicas.replicas import train_replicas

    found = _asked(spec, method, workers, straggler)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "method.pt")
    done: list[ReplicasResult] = []
    with output.stdout_kept(), progress_bars.shown() as shown:
        for one in found.methods:
            for number in range(seeds):
                seed = found.step.seed + number
                trained = train_replicas(found, one, threads=threads, seed=seed, progress=shown)
                done.append(trained.report)
                if out is not None and number == 0:
                    output.write_file(out / f"{one.label}.pt", trained.save)
    _tell_means(done, found.workers)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json([{**encode(one), "samples_s": one.samples_s} for one in done])
        return
    _show(done, found.workers)
    if out is not None:
        output.note(f"wrote the weights of {len(found.methods)} methods to {out}")


def _tell_means(done: Sequence[ReplicasResult], workers: int) -> None:
    from bricolage.cli import output

    if (apart := max(one.mean_of_means for one in done)) > 0.0:
        output.note(
            f"the loss is no mean over samples: the mean of {workers} workers' gradients is {apart:.1%} from the gradient of "
            "their batches together, so that synchronous methods are not the same as one model trained on these"
        )


def _asked(spec: Path, method: Sequence[str] | None, workers: int | None, straggler: float | None) -> Replicas:
    """The file's replicas with what the options say instead.

    Raises:
        UsageError: the file cannot be used, or there is no such method, or it cannot train what the file says.
    """
    from bricolage.train.replicas.replica_spec import KINDS, Method, explain_refusal, read_replicas

    found = read_replicas(spec)
    if method is not None:
        kinds = [one for one in KINDS if one in method]
        if len(kinds) < len(set(method)):
            wrong = next(one for one in method if one not in KINDS)
            raise errors.BadOption(option="--method", value=wrong, advice=f"Use one of {', '.join(KINDS)}")
        found = replace(found, methods=tuple(Method(kind) for kind in kinds))
    found = replace(found, workers=workers or found.workers)
    if straggler is not None:
        found = replace(found, straggler_ms=straggler)
    for one in found.methods:
        if reason := explain_refusal(one, found.workers, found.step):
            raise errors.BadTrainingSpec(path=spec, reason=f"method '{one.label}': {reason}")
    return found


def _show(done: Sequence[ReplicasResult], workers: int) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    within = min(one.seconds for one in done)
    heads = [("Method", "fold"), ("Loss", "right"), ("Accuracy", "right"), (f"In {within:.2f} s", "right")]
    heads += [("Time", "right"), ("Samples/s", "right"), ("Sent", "right"), ("Ahead", "right"), ("Stale", "right")]
    rows = []
    labels = dict.fromkeys(one.method.label for one in done)
    for label in labels:
        some = [one for one in done if one.method.label == label]
        early = [at.accuracy for one in some if (at := one.at(within)) is not None and at.accuracy is not None]
        rows.append(
            [
                label,
                _mean([one.loss for one in some], words.loss),
                _mean([one.accuracy for one in some], "{:.1%}".format),
                _mean(early, "{:.1%}".format),
                words.seconds(sum(one.seconds for one in some) / len(some)),
                f"{sum(one.samples_s for one in some) / len(some):,.0f}",
                words.size(sum(one.sent_bytes for one in some) // len(some)),
                str(max(one.ahead for one in some)),
                f"{max(one.staleness for one in some):.1f}",
            ]
        )
    output.show_result(plain_table(heads, rows))
    several = len(done) > len(labels)
    print(f"\n{words.count(workers, 'worker')}" + (f"; means over {len(done) // len(labels)} seeds" if several else ""))


def _mean(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    from bricolage.report import words

    known = [value for value in values if value is not None]
    return form(sum(known) / len(known)) if known else words.MISSING
