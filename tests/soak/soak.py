"""Many inferences of one artifact from several threads: the same bits, and nothing that grows."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

import bricolage
from bricolage.base.options import Options
from bricolage.runtime.executable import Executable

_INPUTS = 8
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Usage:
    """What the process holds."""

    resident: int
    descriptors: int
    threads: int

    @staticmethod
    def now() -> Usage:
        gc.collect()
        process = psutil.Process()
        return Usage(process.memory_info().rss, process.num_fds(), process.num_threads())


@dataclass(frozen=True)
class Soaked:
    """What came of it."""

    backend: str
    inferences: int
    different: int
    before: Usage
    """After the first tenth, when everything has been allocated that one call after another needs."""
    after: Usage

    @property
    def growth(self) -> float:
        """Of the resident memory, as a part of it."""
        return self.after.resident / self.before.resident - 1

    @property
    def fine(self) -> bool:
        """Whether it is as steady as promised."""
        leaks = self.after.descriptors > self.before.descriptors or self.after.threads > self.before.threads
        return not self.different and self.growth < 0.01 and not leaks

    def __str__(self) -> str:
        return (
            f"{self.inferences:,} inferences on {self.backend}: {self.different} differ, memory {self.growth:+.2%}, "
            f"descriptors {self.after.descriptors - self.before.descriptors:+d}"
        )


def artifact(folder: Path, backend: str, cores: int) -> Path:
    """A small network (a convolution, a product, element-wise operators), planned for one backend on so many cores."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "b": (8,), "v": (10, 8)}
    inits = [onnx.numpy_helper.from_array(rng.normal(0, 0.3, s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 10])]
    graph = helper.make_graph(nodes, "net", ends, outs, inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = Options(backends=(backend,), effort="instant", budget_s=1.0, threads=cores)
    return bricolage.optimize(model, options).save(folder / f"{backend}.bricolage")


def samples() -> list[np.ndarray]:
    """Inputs, some with what is special in floating point."""
    rng = np.random.default_rng(1)
    made = [rng.normal(size=(2, 3, 8, 8)).astype(np.float32) for _ in range(_INPUTS)]
    made[0][:] = 0
    made[1][0] = 1e-40  # below the smallest normal number
    return made


def soak(fast: Executable, backend: str, inferences: int, threads: int) -> Soaked:
    """Runs it from several threads at a time; every answer is compared with the first one to the same input."""
    inputs = samples()
    wanted = [fast(x).tobytes() for x in inputs]

    def part(count: int) -> int:
        different = [0] * threads

        def work(number: int) -> None:
            for turn in range(count // threads):
                which = (turn + number) % _INPUTS
                different[number] += fast(inputs[which]).tobytes() != wanted[which]

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(different)

    first = part(inferences // 10)
    before = Usage.now()
    rest = part(inferences - inferences // 10)
    return Soaked(backend, inferences, first + rest, before, Usage.now())


# --- other lives of a process ---------------------------------------------------------------------------------------


def together(executables: dict[str, Executable], calls: int) -> bool:
    """Several executables and runtimes in one process, called in turn and from a thread each."""
    inputs = samples()
    wanted = {name: [fast(x).tobytes() for x in inputs] for name, fast in executables.items()}
    wrong: list[str] = []

    def work(name: str) -> None:
        for turn in range(calls):
            which = turn % _INPUTS
            if executables[name](inputs[which]).tobytes() != wanted[name][which]:
                wrong.append(name)

    workers = [threading.Thread(target=work, args=(name,)) for name in executables]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for name in executables:
        work(name)
    return not wrong


def signals(fast: Executable, calls: int) -> bool:
    """A timer's signal every millisecond, with a handler in Python."""
    inputs, arrived = samples(), 0
    wanted = [fast(x).tobytes() for x in inputs]

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived += 1

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        right = all(fast(inputs[n % _INPUTS]).tobytes() == wanted[n % _INPUTS] for n in range(calls))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return right and arrived > 0


_SPAWN = """
import multiprocessing, sys
import numpy as np
import bricolage
from tests.soak.soak import samples

def answer(path):
    return [bricolage.load(path)(x).tobytes() for x in samples()]

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    own = answer(sys.argv[1])
    with context.Pool(2) as pool:
        assert pool.map(answer, [sys.argv[1]] * 2) == [own] * 2
"""
_EXIT = """
import sys, threading, time
import bricolage
from tests.soak.soak import samples
fast, x = bricolage.load(sys.argv[1]), samples()[3]
def work():
    while True:
        fast(x)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


def spawned(path: Path, folder: Path) -> bool:
    """Processes that `multiprocessing` spawns give the same bits."""
    script = folder / "spawning.py"
    script.write_text(_SPAWN, encoding="utf-8")
    return _runs(script, path)


def ends_in_the_middle(path: Path, folder: Path, times: int) -> bool:
    """Each time the interpreter ends while daemon threads are in the middle of runs."""
    script = folder / "ending.py"
    script.write_text(_EXIT, encoding="utf-8")
    return all(_runs(script, path) for _ in range(times))


def _runs(script: Path, path: Path) -> bool:
    folders = os.pathsep.join([str(_ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, script, path],
        env={**os.environ, "PYTHONPATH": folders},
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        encoding="utf-8",
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    return done.returncode == 0


def forked(fast: Executable, children: int) -> bool:
    """Children that are forked while another thread infers give the same bits, and end."""
    x, stop = samples()[3], threading.Event()
    wanted = fast(x).tobytes()

    def infer() -> None:
        while not stop.is_set():
            fast(x)

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        return all(_child(lambda: fast(x).tobytes() == wanted) for _ in range(children))
    finally:
        stop.set()
        thread.join()


def _child(right: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # which ends one that hangs
        try:
            os._exit(0 if right() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return status == 0
