"""Comparisons under an instruction set, and the evidence that a backend keeps to it.

    python -m benchmarks.tools.isa --isa avx2 --workload dcgan,collage-bert

Where this machine can be taken for a smaller processor (`benchmarks.processor`), every backend finds that one. Elsewhere
`BRICOLAGE_ISA` tells those that can be told (`backends/isa_limits.py`). Whether that helps is looked at here: each backend
runs the network for some seconds in a process of its own, and Linux is asked when its threads last held AVX-512 registers
(`/proc/PID/task/TID/arch_status`, which is brought up to date whenever a thread leaves a processor). Threads that keep to AVX2
never do. Python's own libraries are kept to AVX2 meanwhile, since they would be taken for the backend.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.processor import current, masked, missing
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE as NATIVE_VARIABLE
from bricolage.base.options import ISA_VARIABLE, ISAS, available_cores
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import host, unlimited
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.runtime.process_environment import environment

_AVX2_LIBRARIES = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_ICL AVX512_SPR X86_V4",
    "OPENBLAS_CORETYPE": "Haswell",
}
"""Keeps the C library and numpy to AVX2."""
_SECONDS = 3.0
_RECENT_MS = 30
_EVERY_S = 0.01
_BUSY_TICKS = 20
"""Processor time, in hundredths of a second, from which a thread counts."""
_NOTICEABLE = 0.02
"""Share of looks; what is below may be a copy by the C library."""


_PROCESSORS: Mapping[str, str] = {"avx2": "avx2", "avx512": "no-amx"}
"""The smaller processor that an instruction set stands for."""


def restart_under(isa: str) -> None:
    """Replaces this process by itself under an instruction set, unless it is already; libraries read such things once."""
    processor = _PROCESSORS[isa]
    if current() == processor or os.environ.get(ISA_VARIABLE) == isa:
        return
    if missing(processor) is None:
        variables = masked(processor, os.environ)
    else:
        libraries = {ISA_VARIABLE: isa, NATIVE_VARIABLE: isa, **(_AVX2_LIBRARIES if isa == "avx2" else {})}
        variables = {**os.environ, **libraries}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)


def limit() -> str:
    """What backends are kept to here, for a table: "as avx2" where the processor answers as a smaller one, "avx2" where those
    that can be told were told; empty for all that the processor has."""
    return f"as {current()}" if current() else os.environ.get(ISA_VARIABLE, "")


def keeps(backend: str, workload: str, threads: int, limit_s: float) -> tuple[bool, str]:
    """Whether a backend keeps to the limit on a network, and in words why.

    AVX-512 can be looked for. AMX cannot, so under a limit of AVX-512 those backends count that can be told.
    """
    allowed = host().instructions
    if not current() and allowed == unlimited().instructions:
        return True, "the processor has no more"
    if "avx512f" in allowed and current():
        return True, "finds no more"
    if "avx512f" in allowed:
        return (True, "was told") if backend in TOLD else (False, "cannot be told")
    try:
        return verdict(watched(backend, workload, threads, limit_s))
    except RuntimeError as error:
        return False, str(error)


TOLD = frozenset(["native", "torch", "inductor", "openvino", "xla", "tvm", "iree"])
"""Backends that follow `BRICOLAGE_ISA`, if not all of them everywhere."""


def verdict(shares: Sequence[float]) -> tuple[bool, str]:
    """What to make of the shares of looks at busy threads that found AVX-512 registers in use."""
    if not shares:
        return False, "no thread was seen working"
    return max(shares) <= _NOTICEABLE, f"AVX-512 in {max(shares):.0%} of looks"


def tells() -> bool:
    """Whether Linux says when a thread last held AVX-512 registers; on processors without them it does not."""
    status = Path("/proc/self/arch_status")
    return status.exists() and bool(status.read_text(encoding="utf-8").strip())


def watched(backend: str, workload: str, threads: int, limit_s: float) -> list[float]:
    """For each busy thread of a backend that runs a network, the share of looks that found AVX-512 registers in recent use.

    Raises:
        RuntimeError: this system does not tell, or the backend does not run the network within `limit_s` seconds.
    """
    if not tells():
        raise RuntimeError("this system does not tell (nothing in /proc/PID/arch_status)")
    told = environment((backend,), Resources(threads, host(), alone=True))
    variables = told if current() else {**told, **_AVX2_LIBRARIES}
    given = json.dumps([backend, workload, threads])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tools.isa", "--run", given],
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            return _look(child, limit_s)
        except RuntimeError as error:
            log.seek(0)
            lines = [line for line in log.read().splitlines() if line.strip() and line != _READY]
            raise RuntimeError(f"{error}: {lines[-1][:200]}" if lines else str(error)) from None
        finally:
            child.kill()
            child.wait()


_READY = "ready"


def _look(child: subprocess.Popen[bytes], limit_s: float) -> list[float]:
    folder, deadline = Path(f"/proc/{child.pid}"), time.monotonic() + limit_s
    stdout = folder / "fd/1"
    while _READY not in (stdout.read_text(errors="replace", encoding="utf-8") if stdout.exists() else ""):
        if child.poll() is not None:
            raise RuntimeError("it failed")
        if time.monotonic() > deadline:
            raise RuntimeError(f"it was not ready after {limit_s:.0f} s")
        time.sleep(_EVERY_S)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    looks, recent = Counter[str](), Counter[str]()
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end and child.poll() is None:
        for task in (folder / "task").iterdir():
            try:
                elapsed = int((task / "arch_status").read_text(encoding="utf-8").split()[-1])
                spent = sum(map(int, (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]))
            except (OSError, ValueError, IndexError):
                continue  # it has ended
            first.setdefault(task.name, spent)
            last[task.name] = spent
            looks[task.name] += 1
            recent[task.name] += 0 <= elapsed <= _RECENT_MS
        time.sleep(_EVERY_S)
    return [recent[name] / looks[name] for name in last if last[name] - first[name] >= _BUSY_TICKS]


def _run(backend: str, workload: str, threads: int) -> None:
    """Runs a network until the process is ended."""
    graph = prepare(to_model(export(workloads()[workload])), {})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        chosen = registry.get(backend)
        kernel = chosen.compile(region, chosen.configs("highest", host())[0], Resources(threads=threads, alone=True))
        inputs, outputs = (
            [allocate_aligned(i.sizes, i.numpy) for i in infos] for infos in (region.inputs, region.outputs)
        )
        for array in inputs:
            array[...] = 0
        call = kernel.bind(inputs, outputs)
        call()
    print(_READY, flush=True)
    while True:
        call()


def table(rows: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Markdown: workloads and what was seen of each backend."""
    names = list(dict.fromkeys(name for _, found in rows for name in found))
    lines = ["| workload | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    return "\n".join([*lines, *(f"| {w} | " + " | ".join(found.get(n, "") for n in names) + " |" for w, found in rows)])


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools.isa", description=__doc__.partition("\n")[0])
    parser.add_argument("--isa", choices=ISAS, default="avx2")
    parser.add_argument("--workload", default="dcgan", help="names, separated by commas")
    parser.add_argument("--backend", default="", help="names, separated by commas (all that are installed)")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--limit", type=float, default=300, help="seconds to compile")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        _run(*json.loads(given.run))
    restart_under(given.isa)
    names = given.backend.split(",") if given.backend else [b.name for b in registry.available()]
    rows: list[tuple[str, dict[str, str]]] = []
    for workload in given.workload.split(","):
        rows.append((workload, {}))
        for name in names:
            kept, words = keeps(name, workload, given.threads, given.limit)
            rows[-1][1][name] = f"{'yes' if kept else 'no'}: {words}"
            print(workload, name, rows[-1][1][name], file=sys.stderr, flush=True)
    print(host(), table(rows), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
