"""`torch.compile` with bricolage as its backend beside Inductor's defaults and no compiler, on ten networks.

    python -m benchmarks.torch_compile --output out/torch-compile.json
    python -m benchmarks.torch_compile --workload resnet-50,gpt2 --precision high --budget 60

Each contestant is a process that builds the network and compiles it; bricolage takes turns with Inductor, then with eager, in three
pairs of fresh processes each. Answers are compared with eager's. Shown are medians and paired ratios of the others' times
to bricolage's (above 1: bricolage is faster), and how long the first call took, which compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.commits import ROOT, take_turns
from benchmarks.latency import select
from benchmarks.output import keep
from benchmarks.workloads import workloads
from bricolage.device.host import host
from bricolage.options import BOUNDS, PRECISIONS, Precision
from bricolage.verify.compare import relative_error

TEN = "six,mobilenet-v2,squeezenet,inception-v3,gpt2"

_RUN = """
import json, sys, time
import numpy as np
import torch
from benchmarks.workloads import workloads
name, backend, options, inputs, answer, told = sys.argv[1:]
model = workloads()[name].build()
given = [torch.from_numpy(array) for array in np.load(inputs).values()]
if backend != "eager":
    model = torch.compile(model, backend=backend, options=json.loads(options) or None)
with torch.inference_mode():
    start = time.perf_counter()
    model(*given)
    first = time.perf_counter() - start
    found = model(*given)
    found = found if isinstance(found, tuple) else (found,)
    np.savez(answer, *[one.numpy() for one in found])
    if backend == "bricolage":
        import bricolage.dynamo
        with open(told, "w") as file:
            file.writelines(f"{one}\\n" for one in bricolage.dynamo.graphs())
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        end, times = time.perf_counter() + float(line), []
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            model(*given)
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(times), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """One network. Ratios with their 95 % intervals, above 1 where bricolage is faster."""

    workload: str
    graphs: tuple[str, ...]
    """What became of the graphs, in the last process."""
    ms: float
    inductor_ms: float
    eager_ms: float
    over_inductor: tuple[float, float, float]
    over_eager: tuple[float, float, float]
    error: float
    """Of bricolage's answer against eager's."""
    inductor_error: float
    first_s: tuple[float, float]
    """Of the first call: bricolage's (what was decided in a process before is found again) and Inductor's."""


def run(name: str, precision: Precision, budget_s: float | None, folder: Path) -> Row:
    """Races one network.

    Raises:
        RuntimeError: a contestant ends.
    """
    inputs, told = folder / f"{name}.npz", folder / f"{name}.txt"
    np.savez(inputs, **workloads()[name].example_inputs(0))  # type: ignore[arg-type]  # its stub takes a name for a flag
    options = {"precision": precision, **({"budget_s": budget_s} if budget_s else {})}

    def start(backend: str) -> subprocess.Popen[str]:
        words = json.dumps(options if backend == "bricolage" else {})
        answer = folder / f"{name}-{backend}.answer.npz"
        return subprocess.Popen(
            [sys.executable, "-c", _RUN, name, backend, words, str(inputs), str(answer), str(told)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    inductor = take_turns([partial(start, "inductor"), partial(start, "bricolage")])
    eager = take_turns([partial(start, "eager"), partial(start, "bricolage")])
    answers = {
        backend: [*np.load(folder / f"{name}-{backend}.answer.npz").values()]
        for backend in ("eager", "inductor", "bricolage")
    }
    return Row(
        workload=name,
        graphs=tuple(told.read_text(encoding="utf-8").splitlines()),
        ms=inductor.ms[1],
        inductor_ms=inductor.ms[0],
        eager_ms=eager.ms[0] * inductor.ms[1] / eager.ms[1],  # of another run: scaled by bricolage's own time in both
        over_inductor=(inductor.ratio.value, inductor.ratio.low, inductor.ratio.high),
        over_eager=(eager.ratio.value, eager.ratio.low, eager.ratio.high),
        error=relative_error(answers["bricolage"], answers["eager"]),
        inductor_error=relative_error(answers["inductor"], answers["eager"]),
        first_s=(inductor.load_s[1], inductor.load_s[0]),
    )


def table(rows: Sequence[Row]) -> str:
    """All as a Markdown table."""
    lines = [
        "| network | bricolage ms | Inductor ms | eager ms | over Inductor [95 % CI] | over eager [95 % CI] | error | graphs |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        over = [f"**{one[0]:.2f}** [{one[1]:.2f}, {one[2]:.2f}]" for one in (row.over_inductor, row.over_eager)]
        became = "; ".join(graph.rpartition("): ")[2] for graph in row.graphs)
        cells = [row.workload, f"{row.ms:.3g}", f"{row.inductor_ms:.3g}", f"{row.eager_ms:.3g}", *over]
        lines.append(f"| {' | '.join(cells)} | {row.error:.1e} | {became} |")
    means = [
        statistics.geometric_mean(getattr(row, name)[0] for row in rows) for name in ("over_inductor", "over_eager")
    ]
    return "\n".join([*lines, f"| geometric mean | | | | **{means[0]:.2f}** | **{means[1]:.2f}** | | |"])


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_compile", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default=TEN, help="names or families, separated by commas")
    parser.add_argument("--precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--budget", type=float, help="seconds for each decision")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each network")
    given = parser.parse_args()
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for name in select(given.workload.split(",")):
            rows.append(run(name, given.precision, given.budget, Path(folder)))
            print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
            document = {
                "hardware": str(host()),
                "bound": BOUNDS[given.precision],
                "rows": [asdict(row) for row in rows],
            }
            keep(document, given.output)
    print(json.dumps(document, indent=1) if given.json else f"{host()}\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
