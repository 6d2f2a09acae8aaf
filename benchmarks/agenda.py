"""What decisions lose by what they leave out; `python -m benchmarks.agenda`.

    python -m benchmarks.agenda --workload wide,six,collage --json
    python -m benchmarks.agenda --workload resnet-50 --effort quick --output out/agenda.json
    python -m benchmarks.agenda --workload wide --effort instant --against quick --output out/instant.json
    python -m benchmarks.agenda --workload bert-base --precision medium --budget 150 --backend native --backend openvino
    python -m benchmarks.agenda --show out/agenda.json
    python -m benchmarks.agenda --record out/agenda.json

Each network is decided on twice with an empty database of costs: once as a user decides, once with everything measured whatever
its bound says (as far as `--everything` seconds reach), or with `--against` at another effort. Where both ship different plans
these race in the same rounds, checked against float64. The regret is what the second saves over the first; 0 where both ship the
same, or the difference is within the noise. `--record` adds what was seen to the track record that decisions leave things out by
(`perf/track_record.json`).
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np

from benchmarks.rewriting_product import backends_within_reach
from benchmarks.workloads import export, workloads
from bricolage.api.bench import CHALLENGER, bench
from bricolage.api.optimize import optimize
from bricolage.cache import VARIABLE
from bricolage.codec import decode, encode, parse
from bricolage.device.host import host
from bricolage.efforts import PROFILES, Effort, EffortProfile
from bricolage.errors import BricolageError
from bricolage.graph.network_kind import NetworkKind, network_kind
from bricolage.measure.statistics import THRESHOLD
from bricolage.options import Options
from bricolage.perf.track_record import SHIPPED, Attempt, Compiling, NetworkTimes, TrackRecord, shipped
from bricolage.plan.agenda import AgendaItem
from bricolage.plan.plan import Bucket
from bricolage.runtime.executable import Executable

_RIVAL = "everything"
_WHOLE = "whole model on "
_KNOWN_S = 0.1
"""Expected of what is taken over from the database."""
_WAYS = {
    "rewritten graph": "rewritten graphs",
    "rules tailored to the fastest backend": "tailored graphs",
    "search for rewrites": "searched graphs",
    "placements": "mixtures",
    "kernel tuning": "tuned kernels",
}
"""Items of the agenda, and what the track record calls them."""


_QUICK = frozenset(["native", "onnxruntime", "openvino", "torch"])
"""Backends that compile quickly: their items are expected to take what the baselines took, not what the record says."""
_TIMED = frozenset(["kernel tuning"])
"""Those that find the more the longer they take."""


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
    times: Mapping[str, float] = field(default_factory=dict)
    """Of the whole network by implementation, as the second measured it."""
    incumbent: str = ""
    """Backend of the best single configuration there."""

    @property
    def lost(self) -> bool:
        """Whether something that was left out would have gained."""
        return self.regret_ci[0] > 0.0 and self.regret > THRESHOLD


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Nothing is known of any cost."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {VARIABLE: folder}):
        yield


def _without_risk(effort: Effort) -> AbstractContextManager[object]:
    """Nothing is left out for its bound."""
    return patch.dict(
        cast(dict[str, EffortProfile], PROFILES), {effort: dataclasses.replace(PROFILES[effort], risk=1e-9)}
    )


def run(name: str, options: Options, everything_s: float, against: Effort | None = None) -> Row:
    """Decides on a network twice, and races what ships: the second time with everything measured, or with the effort `against`.

    Raises:
        BricolageError: it cannot be decided on, or a plan did not finish the race.
    """
    workload = workloads()[name]
    source, inputs = export(workload), workload.example_inputs(options.seed)
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
        one, other = first.plan.buckets[0], second.plan.buckets[0]
        same = (one.chosen, one.variant) == (other.chosen, other.variant)
        kind = network_kind(first.graph(0))
        regret, interval = (0.0, (0.0, 0.0)) if same else _regret(first, second, options, inputs)
    alone = [c for c in other.contestants if c.kind == "baseline" and c.implementation is not None]
    times = {
        f"{c.implementation.backend} {c.implementation.config.name}": c.median_ms
        for c in alone
        if c.implementation is not None and c.median_ms is not None and c.accepted
    }
    return Row(
        name,
        kind,
        str(host()),
        one.operators,
        one.chosen,
        one.winner.median_ms or float("nan"),
        round(seconds, 1),
        other.chosen,
        other.winner.median_ms or float("nan"),
        round(all_s, 1),
        regret,
        interval,
        one.agenda,
        other.agenda,
        times,
        other.best_baseline.partition(" ")[0],
    )


def _regret(
    first: Executable, second: Executable, options: Options, inputs: Mapping[str, np.ndarray]
) -> tuple[float, tuple[float, float]]:
    """What the second saves over the first, with its interval, as shares of the time."""
    near = [*backends_within_reach(first.plan.buckets[0]), *backends_within_reach(second.plan.buckets[0])]
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = first.save(Path(folder) / "ours.bricolage"), second.save(Path(folder) / f"{_RIVAL}.bricolage")
        limited = dataclasses.replace(options, backends=tuple(dict.fromkeys(near)))
        raced = bench(ours, limited, inputs=inputs, rivals=[theirs]).buckets[0]
    mine, rival = _of(raced, CHALLENGER), _of(raced, _RIVAL)
    low, high = rival[1] / mine[2], rival[2] / mine[1]
    ratio = rival[0] / mine[0]
    return max(0.0, 1.0 - 1.0 / ratio), (max(0.0, 1.0 - 1.0 / low), max(0.0, 1.0 - 1.0 / high))


def _of(raced: Bucket, name: str) -> tuple[float, float, float]:
    """Speed-up over the best single backend, with its interval."""
    found = next(c for c in raced.contestants if c.name == name or c.name.startswith(f"{name} "))
    if found.speedup is None or found.speedup_ci is None:
        raise BricolageError(message=f"a plan did not finish the race: {found.reason}")
    return found.speedup, *found.speedup_ci


def recorded(rows: Sequence[Row], known: TrackRecord) -> TrackRecord:
    """The track record with what was seen; what it knew of the same networks on the same processor is replaced."""
    seen = {(row.workload, row.processor) for row in rows}
    networks = [one for one in known.networks if (one.network, one.processor) not in seen]
    networks += [NetworkTimes(row.workload, row.kind, row.processor, dict(row.times)) for row in rows]
    again = {
        (_WAYS.get(item.name), row.workload) for row in rows for item in row.everything if item.outcome == "measured"
    }
    attempts = [one for one in known.attempts if (one.way, one.network) not in again]
    for row in rows:
        won = {one.name for one in row.everything if one.gained > 0.0} if row.everything_ships != row.ships else set()
        for item in row.everything:
            if item.outcome == "measured" and item.name in _WAYS:
                gain = item.gained if item.name in won and row.lost else 0.0
                way, seconds = _WAYS[item.name], round(item.seconds, 1) if item.name in _TIMED else None
                attempts.append(Attempt(way, row.workload, row.kind, row.incumbent, gain, seconds))
    return dataclasses.replace(
        known, networks=tuple(networks), attempts=tuple(attempts), compiling=_compiling(rows, known)
    )


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


def written(record: TrackRecord) -> str:
    """As the file holds it: a line for each network and attempt."""
    facts = encode(record)
    lists = {name: ",\n".join(json.dumps(one) for one in facts.pop(name)) for name in ("networks", "attempts")}
    head = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items())
    return "{\n" + head + "".join(f',\n"{name}": [\n{text}\n]' for name, text in lists.items()) + "\n}\n"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with what they come to."""
    lines = [
        "| network | kind | ships | ms | s | the second ships | ms | s | regret [95 % CI] | left out | largest bound |",
        "|---|---|---|---:|---:|---|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        out = [one for one in row.agenda if one.outcome != "measured"]
        most = max((one.most for one in out), default=0.0)
        lines.append(
            f"| {row.workload} | {row.kind} | {row.ships} | {row.ms:.3g} | {row.seconds:.0f} | {row.everything_ships} "
            f"| {row.everything_ms:.3g} | {row.everything_s:.0f} | {row.regret:.1%} [{row.regret_ci[0]:.1%}, "
            f"{row.regret_ci[1]:.1%}] | {len(out)} | {most:.1%} |"
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
    parser.add_argument("--workload", default="wide,six,collage", help="names or families, separated by commas")
    parser.add_argument("--effort", default="quick", choices=list(PROFILES))
    parser.add_argument("--precision", default="highest")
    parser.add_argument("--budget", type=float, help="seconds for each decision; without it, what the effort says")
    parser.add_argument("--backend", action="append", default=[], help="use this one alone; may be repeated")
    parser.add_argument(
        "--everything", type=float, default=600.0, help="seconds for the decision that leaves out nothing"
    )
    parser.add_argument("--against", choices=list(PROFILES), help="instead: the effort of the second decision")
    parser.add_argument("--output", type=Path, default=Path("out/agenda.json"))
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--show", type=Path, help="print the table of a file")
    parser.add_argument("--record", type=Path, help="add what a file holds to the track record")
    given = parser.parse_args()
    if given.show or given.record:
        shown = decode(tuple[Row, ...], parse((given.show or given.record).read_bytes()), "rows")
        if given.record:
            SHIPPED.write_text(written(recorded(shown, shipped())), encoding="utf-8")
        print(table(shown))
        return 0
    names = _names(given.workload)
    backends = tuple(given.backend) or None
    options = Options(effort=given.effort, precision=given.precision, budget_s=given.budget, backends=backends)
    known = decode(tuple[Row, ...], parse(given.output.read_bytes()), "rows") if given.output.exists() else ()
    rows = list(known)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        if any(row.workload == name for row in rows):
            continue
        try:
            rows.append(run(name, options, given.everything, given.against))
        except BricolageError as error:
            print(f"{name}: {error.sentence}", file=sys.stderr)
            continue
        given.output.write_text(json.dumps(encode(rows), indent=1), encoding="utf-8")
        print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    print(json.dumps(encode(rows)) if given.json else table(rows))
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
