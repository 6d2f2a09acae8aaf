"""What a policy that was learned on other networks gains a search by random keys: `python -m benchmarks.rewrites.learned_keys`.

    python -m benchmarks.rewrites.learned_keys --output out/keys.json --policy src/bricolage/search/key_policy.json
    python -m benchmarks.rewrites.learned_keys nasrnn squeezenet --rounds 20

For each network a policy learns on the others (leave one out). Then four searches of the network's parts make equally many
evaluations: keys near the greedy start, as `--search random-keys` draws them; keys that the policy draws, besides the same start,
as `--search learned-keys` does; and both without the start, uniform and drawn by the policy, as REGAL (Paliwal et al., ICLR 2020)
compares them. Costs are predicted (the roofline estimate), as a share of the parts' cost before; each is the mean over seeds.
Nothing is measured. REGAL reports a peak memory 3.56 % lower than that of random keys without a policy, on graphs that were not
learned from.

`--policy` writes the policy that learned on all the networks, which is the one that comes with the package.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.rewrites.searching import DEFAULT
from benchmarks.tools.output import keep
from benchmarks.workloads import export, workloads
from bricolage.costs.models.roofline import OperatorRoofline
from bricolage.frontends import to_model
from bricolage.graph.prepare import simplify
from bricolage.rewrite.catalogue import choose_rules
from bricolage.search.key_policy import KeyPolicy
from bricolage.tune.key_learning import KeyLearningOptions, LearningPart, collect_parts, learn_keys

EVALUATIONS = (1, 2, 4, 8, 16)
WAYS = ("random-keys", "learned-keys", "uniform", "policy alone")
_SEEDS = 2
_GRAPHS, _LONG_S = 2_000, 1e5
"""Graphs that may be looked at on a part while searches are compared, and seconds: more than they need."""


@dataclass(frozen=True)
class Row:
    """One network that the policy did not see: for each way the cost after each number of `EVALUATIONS`, as a share of the cost
    before; the lowest that any of them met."""

    network: str
    parts: int
    shares: Mapping[str, tuple[float, ...]]
    lowest: float
    learned_rounds: int


def compare_searches(
    network: str, parts: Sequence[LearningPart], policy: KeyPolicy, seeds: int, learned_rounds: int
) -> Row:
    """The four searches on the parts of a network, each as often as the network has it."""
    before = sum(part.copies * part.decoder.first_ms for part in parts)
    totals = {way: np.zeros(EVALUATIONS[-1]) for way in WAYS}
    lowest = 0.0
    for part in parts:
        distributions = policy.choose_distributions(part.features)
        best = np.inf
        for way in WAYS:
            drawn = distributions if way in ("learned-keys", "policy alone") else None
            traces = [
                part.trace_costs(drawn, EVALUATIONS[-1], seed, from_starts=way.endswith("keys"))
                for seed in range(seeds)
            ]
            totals[way] += part.copies * np.mean(traces, axis=0)
            best = min(best, float(np.min(traces)))
        lowest += part.copies * best
    shares = {way: tuple(float(total[count - 1] / before) for count in EVALUATIONS) for way, total in totals.items()}
    return Row(network, len(parts), shares, lowest / before, learned_rounds)


def format_rows(rows: Sequence[Row]) -> str:
    """Markdown: the cost after each number of evaluations, as a share of the cost before, and the geometric means."""
    heads = ["network", "search", *(f"after {count}" for count in EVALUATIONS), "lowest met"]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|{'---:|' * (len(EVALUATIONS) + 1)}"]
    for row in rows:
        for way, shares in row.shares.items():
            cells = [f"{share:.4f}" for share in (*shares, row.lowest)]
            lines.append(f"| {' | '.join([row.network, way, *cells])} |")
    for way in WAYS if rows else ():
        means = np.exp(np.mean([np.log(row.shares[way]) for row in rows], axis=0))
        cells = [f"{mean:.4f}" for mean in means]
        lines.append(f"| {' | '.join([f'geometric mean of {len(rows)}', way, *cells, ''])} |")
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=DEFAULT, metavar="NAME", help="workloads, two at least")
    parser.add_argument("--rounds", type=int, default=200, help="of each training")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="to look at the graphs of a network while learning, at most"
    )
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="of the searches that are compared")
    parser.add_argument("--policy", type=Path, help="write the policy that learned on all")
    parser.add_argument("--output", type=Path, help="keep the rows as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    options, rules = KeyLearningOptions(rounds=asked.rounds), choose_rules(stable=True, generated=False)
    networks: dict[str, list[LearningPart]] = {}
    unseen: dict[str, list[LearningPart]] = {}
    for name in asked.names:
        began = time.monotonic()
        model = to_model(export(workloads()[name]))
        simplify(model)
        networks[name] = collect_parts(model, rules, OperatorRoofline(), options, seconds=asked.seconds)
        unlimited = replace(options, graphs=_GRAPHS)
        unseen[name] = collect_parts(model, rules, OperatorRoofline(), unlimited, seconds=_LONG_S)
        print(f"{name}: {len(networks[name])} parts, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if asked.policy is not None:
        learned = learn_keys(networks, options)
        learned.policy.save(asked.policy)
        print(f"all: {learned.first_reward:.2%}, then {learned.last_reward:.2%}", file=sys.stderr, flush=True)
    rows: list[Row] = []
    for name, parts in unseen.items():
        learned = learn_keys({other: its for other, its in networks.items() if other != name}, options)
        rows.append(compare_searches(name, parts, learned.policy, asked.seeds, learned.rounds))
        print(f"{name}: learned in {learned.seconds:.0f} s", file=sys.stderr, flush=True)
        keep({"rows": [asdict(row) for row in rows]}, asked.output)
    print(json.dumps([asdict(row) for row in rows], indent=1) if asked.json else format_rows(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
