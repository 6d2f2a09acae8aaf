"""`make faults`: injects faults of every kind at random moments and checks what must hold after each.

    python -m tests.faults [--count 500] [--seed 1] [--state out/faults] [--slice]

It can be stopped at any time and goes on where it was: what is done stands in the state folder, by seed. The kind that takes no
time comes first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.brief import decide_briefly
from tests.faults.runner import QUICK, SLICE, Result, inject, kind_of, usual_seconds


def main() -> int:
    """Runs what is missing, and prints the figure in the last line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, default=Path("out/faults"))
    parser.add_argument("--slice", action="store_true", help="ten injections of the kinds that need no privileges")
    chosen = parser.parse_args()
    if chosen.slice:
        decide_briefly()
    chosen.state.mkdir(parents=True, exist_ok=True)
    file = chosen.state / f"{'slice' if chosen.slice else 'seed'}-{chosen.seed}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    results = {one.number: one for one in (Result(**json.loads(line)) for line in lines)}
    count = len(SLICE) if chosen.slice else chosen.count
    missing = [number for number in range(count) if number not in results]
    missing.sort(key=lambda number: kind_of(chosen.seed, number) != QUICK)
    usual = usual_seconds(chosen.state) if missing else 0.0
    with file.open("a", encoding="utf-8") as out:
        for number in missing:
            kind = SLICE[number % len(SLICE)] if chosen.slice else ""
            result, usual = inject(chosen.seed, number, chosen.state, usual, kind)
            results[number] = result
            out.write(json.dumps(vars(result)) + "\n")
            out.flush()
            print(f"{number} {result.kind}: {result.broken or 'fine'} ({result.seconds:.1f} s)", flush=True)
    done = [results[number] for number in range(count)]
    broken = [one for one in done if one.broken]
    skipped = sum(1 for one in done if one.skipped)
    counts = Counter(one.kind for one in done if not one.skipped)
    print(", ".join(f"{count} × {kind}" for kind, count in counts.most_common()))
    print(f"faults: {len(done) - skipped} injected, {len(broken)} broken, {skipped} skipped (seed {chosen.seed})")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
