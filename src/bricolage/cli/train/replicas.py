"""`bricolage train replicas`: one model trained by several workers, kept in step by one of several methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

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


@guard_command
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

    replica_spec = _override_replicas(spec, method, workers, straggler)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "method.pt")
    done: list[ReplicasResult] = []
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        for replica_method in replica_spec.methods:
            for number in range(seeds):
                seed = replica_spec.step.seed + number
                trained = train_replicas(replica_spec, replica_method, threads=threads, seed=seed, progress=shown)
                done.append(trained.report)
                if out is not None and number == 0:
                    output.write_file(out / f"{replica_method.label}.pt", trained.save)
    _tell_means(done, replica_spec.workers)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json([{**encode(outcome), "samples_s": outcome.samples_s} for outcome in done])
        return
    _show(done, replica_spec.workers)
    if out is not None:
        output.note(f"wrote the weights of {len(replica_spec.methods)} methods to {out}")


def _tell_means(done: Sequence[ReplicasResult], workers: int) -> None:
    from bricolage.cli import output

    if (apart := max(outcome.mean_of_means for outcome in done)) > 0.0:
        output.note(
            f"the loss is no mean over samples: the mean of {workers} workers' gradients is {apart:.1%} from the gradient of "
            "their batches together, so that synchronous methods are not the same as one model trained on these"
        )


def _override_replicas(
    spec: Path, method: Sequence[str] | None, workers: int | None, straggler: float | None
) -> Replicas:
    """The file's replicas with what the options say instead.

    Raises:
        UsageError: the file cannot be used, or there is no such method, or it cannot train what the file says.
    """
    from bricolage.train.replicas.replica_spec import KINDS, Method, explain_refusal, read_replicas

    replica_spec = read_replicas(spec)
    if method is not None:
        kinds = [kind for kind in KINDS if kind in method]
        if len(kinds) < len(set(method)):
            wrong = next(name for name in method if name not in KINDS)
            raise errors.BadOption(option="--method", value=wrong, advice=f"Use one of {', '.join(KINDS)}")
        replica_spec = replace(replica_spec, methods=tuple(Method(kind) for kind in kinds))
    replica_spec = replace(replica_spec, workers=workers or replica_spec.workers)
    if straggler is not None:
        replica_spec = replace(replica_spec, straggler_ms=straggler)
    for replica_method in replica_spec.methods:
        if reason := explain_refusal(replica_method, replica_spec.workers, replica_spec.step):
            raise errors.BadTrainingSpec(path=spec, reason=f"method '{replica_method.label}': {reason}")
    return replica_spec


def _show(done: Sequence[ReplicasResult], workers: int) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    within = min(outcome.seconds for outcome in done)
    heads = [("Method", "fold"), ("Loss", "right"), ("Accuracy", "right"), (f"In {within:.2f} s", "right")]
    heads += [("Time", "right"), ("Samples/s", "right"), ("Sent", "right"), ("Ahead", "right"), ("Stale", "right")]
    rows = []
    labels = dict.fromkeys(outcome.method.label for outcome in done)
    for label in labels:
        seed_runs = [outcome for outcome in done if outcome.method.label == label]
        early = [
            at.accuracy for outcome in seed_runs if (at := outcome.at(within)) is not None and at.accuracy is not None
        ]
        rows.append(
            [
                label,
                _mean([outcome.loss for outcome in seed_runs], words.loss),
                _mean([outcome.accuracy for outcome in seed_runs], "{:.1%}".format),
                _mean(early, "{:.1%}".format),
                words.seconds(sum(outcome.seconds for outcome in seed_runs) / len(seed_runs)),
                f"{sum(outcome.samples_s for outcome in seed_runs) / len(seed_runs):,.0f}",
                words.size(sum(outcome.sent_bytes for outcome in seed_runs) // len(seed_runs)),
                str(max(outcome.ahead for outcome in seed_runs)),
                f"{max(outcome.staleness for outcome in seed_runs):.1f}",
            ]
        )
    output.show_result(plain_table(heads, rows))
    several = len(done) > len(labels)
    print(f"\n{words.count(workers, 'worker')}" + (f"; means over {len(done) // len(labels)} seeds" if several else ""))


def _mean(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    from bricolage.report import words

    numbers = [value for value in values if value is not None]
    return form(sum(numbers) / len(numbers)) if numbers else words.MISSING
