"""What decisions lose by what they leave out; `python -m benchmarks.agenda`.

    python -m benchmarks.agenda --workload wide,six,collage --json
    python -m benchmarks.agenda --workload resnet-50 --effort quick --output out/agenda.json
    python -m benchmarks.agenda --workload wide --effort instant --against quick --output out/instant.json
    python -m benchmarks.agenda --workload bert-base --precision medium --budget 150 --backend native --backend openvino
    python -m benchmarks.agenda --show out/agenda.json
    python -m benchmarks.agenda --record out/agenda.json
    python -m benchmarks.agenda --derive
    python -m benchmarks.agenda --unseen --json [--threads 1] [--workload NAME,…] [--output out/unseen.json]

Each network is decided on twice with an empty database of costs: once as a user decides, once with everything measured that is not
bounded (as far as `--everything` seconds reach), or with `--against` at another effort. Where both ship different plans, their
artifacts take turns in fresh processes, checked against float64. The regret is what the second saves over the first, with its
interval; 0 where both ship the same. `--record` adds what was seen to the log of decisions (`costs/models/track_record.jsonl`);
`--derive` prints what decisions read of that log.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np

from benchmarks.as_it_comes import OURS, Contestant, judge, take_turns
from benchmarks.real.written import truth
from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.base.cache import VARIABLE
from bricolage.base.codec import decode, encode, parse
from bricolage.base.efforts import PROFILES, Effort, EffortProfile
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.costs.decision_log import VERSION, Compiling, LogLine, write_line
from bricolage.costs.models.track_record import SHIPPED, DecisionSubject, TrackRecord, shipped_record
from bricolage.device.host import host
from bricolage.errors import BricolageError
from bricolage.graph.network_kind import NetworkKind, network_kind
from bricolage.measure.statistics import paired_ratio
from bricolage.plan.agenda_record import AgendaItem
from bricolage.runtime.executable import Executable
from bricolage.work.gain import LEAST_GAIN

_FIRST, _RIVAL = "quick", "everything"
_WHOLE = "whole model on "
_TURNS, _TURN_S = 8, 0.5
"""Fresh processes of each side, and seconds that each of them is timed."""
_KNOWN_S = 0.1
"""Expected of what is taken over from the database."""
_QUICK = frozenset(["native", "onnxruntime", "openvino", "torch"])
"""Backends that compile quickly: their items are expected to take what the baselines took, not what the record says."""


@dataclass(frozen=True)
class Row:
    """One network. Seconds of the two decisions; milliseconds of what they ship; the regret as a share of the time."""

    workload: str
    kind: NetworkKind
    processor: str
    operators: int
    ships: str
    ms: float
    seconds: float
    everything_ships: str
    everything_ms: float
    everything_s: float
    regret: float
    regret_ci: tuple[float, float]
    agenda: tuple[AgendaItem, ...]
    """Of the first decision."""
    everything: tuple[AgendaItem, ...]
    """Of the second."""
    log: tuple[LogLine, ...] = ()
    """What both decisions added to the log; nothing of one that other processes disturbed."""

    @property
    def lost(self) -> bool:
        """Whether something that was left out would have gained."""
        return self.regret_ci[0] > 0.0 and self.regret > LEAST_GAIN


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Nothing is known of any cost."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {VARIABLE: folder}):
        yield


def _without_risk(effort: Effort) -> AbstractContextManager[object]:
    """Nothing is left out but what is bounded."""
    return patch.dict(
        cast(dict[str, EffortProfile], PROFILES), {effort: dataclasses.replace(PROFILES[effort], risk=0.0)}
    )


def run(name: str, options: Options, everything_s: float, against: Effort | None = None) -> Row:
    """Decides on a workload twice, and races what ships. Arguments and errors as `decide_twice`."""
    workload = workloads()[name]
    return decide_twice(name, export(workload), workload.example_inputs(options.seed), options, everything_s, against)


def decide_twice(
    name: str,
    source: Path,
    inputs: Mapping[str, np.ndarray],
    options: Options,
    everything_s: float,
    against: Effort | None = None,
) -> Row:
    """Decides on a network twice, and races what ships: the second time with everything measured, or with the effort `against`.

    Raises:
        BricolageError: it cannot be decided on, or a plan did not finish the race.
    """
    with _empty_cache():
        began = time.monotonic()
        first = optimize(source, options, inputs=inputs)
        seconds = time.monotonic() - began
        more = (
            dataclasses.replace(options, effort=against)
            if against
            else dataclasses.replace(options, budget_s=everything_s)
        )
        with nullcontext() if against else _without_risk(options.effort):
            began = time.monotonic()
            second = optimize(source, more, inputs=inputs, replan=True)
            all_s = time.monotonic() - began
        quick, everything = first.plan.buckets[0], second.plan.buckets[0]
        same = (quick.race.chosen, quick.program.variant) == (everything.race.chosen, everything.program.variant)
        kind = network_kind(first.graph(0))
        with Database() as database:
            log = tuple(database.decision_log())
        regret, interval = (0.0, (0.0, 0.0)) if same else _regret(first, second, source, inputs, options)
    return Row(
        name,
        kind,
        host().processor,
        quick.program.operators,
        quick.race.chosen,
        quick.race.winner.median_ms or float("nan"),
        round(seconds, 1),
        everything.race.chosen,
        everything.race.winner.median_ms or float("nan"),
        round(all_s, 1),
        regret,
        interval,
        quick.record.agenda,
        everything.record.agenda,
        log,
    )


def _regret(
    first: Executable, second: Executable, source: Path, inputs: Mapping[str, np.ndarray], options: Options
) -> tuple[float, tuple[float, float]]:
    """What the second saves over the first, as a share of the time, with the 95 % interval of a paired bootstrap. Their artifacts
    take turns, each turn a fresh process, since times differ from process to process by more than from call to call.

    Raises:
        BricolageError: an artifact fails in a fresh process, or its answer is wrong.
    """
    right = truth(source, dict(inputs), options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
        sides = {
            name: Contestant(OURS, executable.save(folder / f"{name}.bricolage"))
            for name, executable in ((_FIRST, first), (_RIVAL, second))
        }
        times, failures = take_turns(sides, folder, _TURNS, _TURN_S, 0)
        if failures:
            side, reason = next(iter(failures.items()))
            raise BricolageError(message=f"what {side} decided did not finish the race: {reason}")
        for side in sides:
            error, is_right = judge(right, folder / f"{side}.npz")
            if not is_right:
                raise BricolageError(message=f"what {side} decided is wrong in a fresh process, by {error:.1e}")
    ours, theirs = ([[turn["steady_ms"]] for turn in times[side]] for side in sides)
    ratio = paired_ratio(ours, theirs)
    low, high = (max(0.0, 1.0 - 1.0 / bound) for bound in (ratio.low, ratio.high))
    return max(0.0, 1.0 - 1.0 / ratio.value), (low, high)


def collect_log_lines(rows: Sequence[Row], known: TrackRecord) -> list[LogLine]:
    """What was seen, as lines that are added to the log."""
    lines = [LogLine(VERSION, compiling=pair) for pair in _compiling(rows, known).items()]
    return [*lines, *(line for row in rows for line in row.log)]


def _compiling(rows: Sequence[Row], record: TrackRecord) -> dict[str, Compiling]:
    """How long backends compile: what is on record, times the median of what it took over that."""
    known = record.compiling
    ratios: dict[str, list[float]] = {name: [] for name in known}
    for row, item in ((seen, one) for seen in rows for one in (*seen.agenda, *seen.everything)):
        backend = item.name.removeprefix(_WHOLE).partition(" ")[0]
        if not item.name.startswith(_WHOLE) or item.outcome != "measured" or item.expected_s <= _KNOWN_S:
            continue
        if backend in _QUICK:
            continue
        if (expected := record.compile_s(backend, row.operators)) is not None:
            ratios[backend].append(item.seconds / expected)
    factors = {name: statistics.median(found) if found else 1.0 for name, found in ratios.items()}
    return {
        name: Compiling(round(one.start_s * factors[name], 2), round(one.operator_s * factors[name], 4))
        for name, one in known.items()
    }


def format_derived(record: TrackRecord) -> str:
    """What decisions read of the log, as Markdown: on how many networks each way gained, by who led and by kind of network."""
    lines = ["| way | over | kind | gained | of networks | chance |", "|---|---|---|---:|---:|---:|"]
    seen = sorted({(attempt.way, attempt.incumbent, attempt.kind) for attempt in record.attempts})
    for way, incumbent, kind in seen:
        tries = record.tries(way, DecisionSubject(kind, processor=host().processor), incumbent)
        chance = f"{tries.chance:.0%}" if tries.is_known else "unknown"
        lines.append(f"| {way} | {incumbent} | {kind} | {tries.won:.3g} | {tries.networks} | {chance} |")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with what they come to."""
    lines = [
        "| network | kind | ships | ms | s | the second ships | ms | s | regret [95 % CI] | left out | expected loss |",
        "|---|---|---|---:|---:|---|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        out = [item for item in row.agenda if item.left_out]
        loss = sum(item.expected_loss for item in out if item.outcome != "bounded")
        lines.append(
            f"| {row.workload} | {row.kind} | {row.ships} | {row.ms:.3g} | {row.seconds:.0f} | {row.everything_ships} "
            f"| {row.everything_ms:.3g} | {row.everything_s:.0f} | {row.regret:.1%} [{row.regret_ci[0]:.1%}, "
            f"{row.regret_ci[1]:.1%}] | {len(out)} | {loss:.1%} |"
        )
    seconds = [row.seconds for row in rows]
    lost = [row for row in rows if row.lost]
    worst = max((row.regret for row in lost), default=0.0)
    lines += [
        "",
        f"Decisions took {statistics.median(seconds):.0f} s in the middle, {max(seconds):.0f} s at most.",
        f"Something that was left out would have won in {len(lost)} of {len(rows)}, by {worst:.1%} at most.",
    ]
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agenda", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", help="names or families, separated by commas; by default wide,six,collage")
    parser.add_argument("--effort", default="quick", choices=list(PROFILES))
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--budget", type=float, help="seconds for each decision; without it, what the effort says")
    parser.add_argument("--backend", action="append", default=[], help="use this one alone; may be repeated")
    parser.add_argument(
        "--everything", type=float, default=600.0, help="seconds for the decision that leaves out nothing"
    )
    parser.add_argument("--against", choices=list(PROFILES), help="instead: the effort of the second decision")
    parser.add_argument("--output", type=Path, help="by default out/agenda.json, of the study out/unseen.json")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--show", type=Path, help="print the table of a file")
    parser.add_argument("--record", type=Path, help="add what a file holds to the log of decisions")
    parser.add_argument("--derive", action="store_true", help="print what decisions read of the log")
    parser.add_argument("--unseen", action="store_true", help="instead: networks that nothing was learnt from")
    parser.add_argument("--setting", help="of the study: one of its settings alone")
    parser.add_argument("--threads", type=int, help="of each decision; by default all cores")
    given = parser.parse_args()
    if given.unseen:
        return _unseen(given)
    if given.derive:
        print(format_derived(shipped_record()))
        return 0
    if given.show or given.record:
        shown = decode(tuple[Row, ...], parse((given.show or given.record).read_bytes()), "rows")
        if given.record:
            with SHIPPED.open("a", encoding="utf-8") as log:
                log.writelines(f"{write_line(line)}\n" for line in collect_log_lines(shown, shipped_record()))
        print(table(shown))
        return 0
    names, output = _names(given.workload or "wide,six,collage"), given.output or Path("out/agenda.json")
    backends = tuple(given.backend) or None
    options = Options(effort=given.effort, precision=given.precision, budget_s=given.budget, backends=backends)
    options = dataclasses.replace(options, threads=given.threads or options.threads)
    known = decode(tuple[Row, ...], parse(output.read_bytes()), "rows") if output.exists() else ()
    rows = list(known)
    output.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        if any(row.workload == name for row in rows):
            continue
        try:
            rows.append(run(name, options, given.everything, given.against))
        except BricolageError as error:
            print(f"{name}: {error.sentence}", file=sys.stderr)
            continue
        output.write_text(json.dumps(encode(rows), indent=1), encoding="utf-8")
        print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    print(json.dumps(encode(rows)) if given.json else table(rows))
    return 0


def _unseen(given: argparse.Namespace) -> int:
    """The study of `benchmarks.unseen.study`, which goes on where its file ends."""
    from benchmarks.unseen.names import overlaps
    from benchmarks.unseen.networks import export as export_unseen
    from benchmarks.unseen.study import EVERYTHING_S, StudyRow, format_study, make_study_row, settings

    if seen := overlaps():
        print("\n".join(seen), file=sys.stderr)
        return 1
    output = given.output or Path("out/unseen.json")
    rows = list(decode(tuple[StudyRow, ...], parse(output.read_bytes()), "rows")) if output.exists() else []
    output.parent.mkdir(parents=True, exist_ok=True)
    for setting in settings():
        if given.setting not in (None, setting.name):
            continue
        options = setting.options(given.threads)
        known = {(row.network, row.setting, row.threads) for row in rows}
        names = setting.networks if given.workload is None else given.workload.split(",")
        for name in (one for one in names if (one, setting.name, options.threads) not in known):
            try:
                row = decide_twice(name, *export_unseen(name), options, EVERYTHING_S)
            except BricolageError as error:
                print(f"{name}, {setting.name}: {error.sentence}", file=sys.stderr)
                continue
            rows.append(make_study_row(row, setting, options.threads))
            output.write_text(json.dumps(encode(rows), indent=1), encoding="utf-8")
            print(format_study(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    print(json.dumps(encode(rows)) if given.json else format_study(rows))
    return 0


def _names(words: str) -> list[str]:
    """Of networks and families of them."""
    known = workloads()
    found: list[str] = []
    for word in words.split(","):
        found += [name for name, one in known.items() if word in (name, one.family)]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
