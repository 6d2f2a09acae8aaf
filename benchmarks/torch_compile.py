"""`torch.compile` with bricolage as its backend beside Inductor's defaults and no compiler, on twenty networks: ten of
`benchmarks.workloads` and the ten of `benchmarks/tools/compiled_networks.py`.

    python -m benchmarks.torch_compile --json --output out/torch-compile.json
    python -m benchmarks.torch_compile --workload resnet-50,gpt2 --precision high --budget 60
    python -m benchmarks.torch_compile --workload users --budget 4

Each contestant is a process that builds the network and compiles it; bricolage takes turns with Inductor, then with eager, in three
pairs of fresh processes each. Answers are compared with eager's. Shown are medians and paired ratios of the others' times
to bricolage's (above 1: bricolage is faster), and what became of each graph. In the summary: the share of graphs that bricolage
kept, geometric means of the ratios, and the seconds that deciding took beside eager's first answer, with nothing known before.
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
from typing import Any

import numpy as np

from benchmarks.commits import ROOT, take_turns
from benchmarks.latency import select
from benchmarks.tools.compiled_networks import NETWORKS
from benchmarks.tools.output import keep
from benchmarks.workloads import workloads
from bricolage.base.options import BOUNDS, PRECISIONS, Precision
from bricolage.device.host import host
from bricolage.verify.compare import relative_error

TWENTY = "six,mobilenet-v2,squeezenet,inception-v3,gpt2,users"
USERS = "users"
"""Word for all of `benchmarks/tools/compiled_networks.py`."""

_RUN = """
import json, sys, time
from dataclasses import asdict
import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from benchmarks.torch_compile import build
name, backend, options, answer, told = sys.argv[1:]
model, given = build(name)
if backend != "eager":
    model = torch.compile(model, backend=backend, options=json.loads(options) or None)
with torch.inference_mode():
    start = time.perf_counter()
    model(*given)
    first = time.perf_counter() - start
    np.savez(answer, *[one.numpy() for one in tree_leaves(model(*given))])
    if backend == "bricolage":
        import bricolage.dynamo
        with open(told, "w") as file:
            json.dump([{**asdict(one), "gain_ms": one.gain_ms} for one in bricolage.dynamo.graphs()], file)
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
    graphs: tuple[dict[str, Any], ...]
    """What became of the graphs, in the last process: fields of `GraphReport`, and `gain_ms`."""
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
    decide_s: tuple[float, ...]
    """Of each graph, in the first process, with nothing known before."""


def run(name: str, precision: Precision, budget_s: float | None, folder: Path) -> Row:
    """Races one network.

    Raises:
        RuntimeError: a contestant ends.
    """
    told = folder / f"{name}.json"
    options = {"precision": precision, **({"budget_s": budget_s} if budget_s else {})}

    def start(backend: str) -> subprocess.Popen[str]:
        words = json.dumps(options if backend == "bricolage" else {})
        answer = folder / f"{name}-{backend}.answer.npz"
        return subprocess.Popen(
            [sys.executable, "-c", _RUN, name, backend, words, str(answer), str(told)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
                "BRICOLAGE_CACHE": str(folder / name),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    (folder / name).mkdir(mode=0o700)
    alone = start("bricolage")
    alone.communicate()
    if alone.returncode:
        raise RuntimeError(f"{name}: a process ended with {alone.returncode}")
    first = json.loads(told.read_text(encoding="utf-8"))
    inductor = take_turns([partial(start, "inductor"), partial(start, "bricolage")])
    eager = take_turns([partial(start, "eager"), partial(start, "bricolage")])
    answers = {
        backend: [*np.load(folder / f"{name}-{backend}.answer.npz").values()]
        for backend in ("eager", "inductor", "bricolage")
    }
    return Row(
        workload=name,
        graphs=tuple(json.loads(told.read_text(encoding="utf-8"))),
        ms=inductor.ms[1],
        inductor_ms=inductor.ms[0],
        eager_ms=eager.ms[0] * inductor.ms[1] / eager.ms[1],  # of another run: scaled by bricolage's own time in both
        over_inductor=(inductor.ratio.value, inductor.ratio.low, inductor.ratio.high),
        over_eager=(eager.ratio.value, eager.ratio.low, eager.ratio.high),
        error=relative_error(answers["bricolage"], answers["eager"]),
        inductor_error=relative_error(answers["inductor"], answers["eager"]),
        first_s=(inductor.load_s[1], inductor.load_s[0]),
        decide_s=tuple(one["decide_s"] or 0.0 for one in first),
    )


def build(name: str) -> tuple[Any, list[Any]]:
    """A network in eval mode, and its inputs as tensors."""
    import torch

    if name in NETWORKS:
        model, given = NETWORKS[name]()
        return model, list(given)
    workload = workloads()[name]
    return workload.build(), [torch.from_numpy(one) for one in workload.example_inputs(0).values()]


def chosen(words: Sequence[str]) -> list[str]:
    """Names from names and families, as `benchmarks.latency` has them, and from those of users.

    Raises:
        SystemExit: a word is none of them.
    """
    names: list[str] = []
    for word in words:
        found = [*NETWORKS] if word == USERS else [word] if word in NETWORKS else select([word])
        names += [one for one in found if one not in names]
    return names


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Over all networks."""
    graphs = [graph for row in rows for graph in row.graphs]
    seconds = [one for row in rows for one in row.decide_s]
    means = {
        name: statistics.geometric_mean(getattr(row, name)[0] for row in rows)
        for name in ("over_inductor", "over_eager")
    }
    return {
        "networks": len(rows),
        "graphs": len(graphs),
        "kept": sum(not one["left"] for one in graphs),
        "share_kept": sum(not one["left"] for one in graphs) / max(1, len(graphs)),
        **means,
        "decide_s": {"median": statistics.median(seconds), "most": max(seconds)} if seconds else None,
    }


def table(rows: Sequence[Row]) -> str:
    """All as a Markdown table."""
    lines = [
        "| network | bricolage ms | Inductor ms | eager ms | over Inductor [95 % CI] | over eager [95 % CI] | error | graphs |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        over = [f"**{one[0]:.2f}** [{one[1]:.2f}, {one[2]:.2f}]" for one in (row.over_inductor, row.over_eager)]
        became = "; ".join(one["left"] or one["shipped"] for one in row.graphs)
        cells = [row.workload, f"{row.ms:.3g}", f"{row.inductor_ms:.3g}", f"{row.eager_ms:.3g}", *over]
        lines.append(f"| {' | '.join(cells)} | {row.error:.1e} | {became} |")
    found = summary(rows)
    lines.append(f"| geometric mean | | | | **{found['over_inductor']:.2f}** | **{found['over_eager']:.2f}** | | |")
    seconds = found["decide_s"]
    took = f"; a graph was decided in {seconds['median']:.1f} s, {seconds['most']:.1f} s at most" if seconds else ""
    return "\n".join([*lines, "", f"{found['kept']} of {found['graphs']} graphs are kept{took}"])


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_compile", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default=TWENTY, help="names or families, separated by commas")
    parser.add_argument("--precision", default="highest", choices=PRECISIONS)
    parser.add_argument("--budget", type=float, help="seconds for each decision")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--output", type=Path, help="also write the JSON here, after each network")
    given = parser.parse_args()
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen(given.workload.split(",")):
            rows.append(run(name, given.precision, given.budget, Path(folder)))
            print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
            document = {
                "hardware": str(host()),
                "bound": BOUNDS[given.precision],
                "summary": summary(rows),
                "rows": [asdict(row) for row in rows],
            }
            keep(document, given.output)
    print(json.dumps(document, indent=1) if given.json else f"{host()}\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
