"""Networks that left Python as C libraries for 64-bit Arm, run by their own test programs in the emulator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.arm.emulation import PROCESSORS, SETS, Processor
from benchmarks.as_it_comes import Model, decide
from benchmarks.exported.contestants import NotBuilt
from benchmarks.workloads import export, workloads

NETWORKS = ("resnet-50", "mobilenet-v3", "minilm-l6", "minilm-l6 int8")
_INT8 = " int8"
_SAMPLES = 4
"""By which ranges of activations are found."""
_NAME = "model"
_RUN_S = 1200
_LACKS = "lacks the instructions"


@dataclass(frozen=True)
class NetworkAnswer:
    """What an exported network answered on a processor with one of its instruction sets."""

    network: str
    isa: str
    processor: str
    right: bool
    """Whether each output is within the bound that the plan was verified with; of a set that the processor lacks, whether the
    library says so when it is opened."""
    text: str


def read_network(name: str, folder: Path) -> Model:
    """A network by its name; one in bytes is quantised here, all of it."""
    known = workloads()[name.removesuffix(_INT8)]
    path = export(known)
    if name.endswith(_INT8):
        from bricolage import quantize

        samples = [known.example_inputs(seed) for seed in range(1, 1 + _SAMPLES)]
        quantize(path, samples, max_error=None, errors_by_operator=False).save(folder / "int8.onnx")
        path = folder / "int8.onnx"
    return Model(name, path, {key: np.asarray(value) for key, value in known.example_inputs(0).items()})


def run_network(name: str, folder: Path, threads: int = 2) -> Iterator[NetworkAnswer]:
    """Decides a network for our engine alone, exports it for Arm, builds its test program, and runs that: each set on a processor
    that has it, the baseline on all processors, and each set on the smallest processor, which refuses what it lacks.

    Raises:
        NotBuilt: a step fails.
    """
    model = read_network(name, folder)
    words = ["--backend", "native", "--effort", "instant", "--threads", str(threads)]
    artifact, _, reason = decide(model, folder, words)
    if reason:
        raise NotBuilt(reason)
    sources, build = folder / "exported", folder / "build"
    _call([sys.executable, "-m", "bricolage.cli.main", "export", str(artifact), "-o", str(sources), "--name", _NAME,
           "--target", "aarch64-linux"])  # fmt: skip
    _call(["cmake", "-S", str(sources), "-B", str(build), "--toolchain", "toolchain.cmake"])
    _call(["cmake", "--build", str(build), "-j2"])
    for isa, processor in (*PROCESSORS.items(), *((isa, "cortex-a72") for isa in SETS)):
        yield _run_test(model.name, isa, processor, build / f"{_NAME}_test", sources / "share" / _NAME)


def _run_test(network: str, isa: str, processor: str, program: Path, weights: Path) -> NetworkAnswer:
    """The program of known answers, on one set of instructions."""
    command = [*Processor(isa, processor).command, str(program), str(weights), isa]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RUN_S)
    text = (ran.stderr.strip() or ran.stdout.strip() or f"it ended with {ran.returncode}").splitlines()[-1]
    if SETS[isa] <= SETS["neon"] or processor == PROCESSORS[isa]:
        return NetworkAnswer(network, isa, processor, ran.returncode == 0, text)
    return NetworkAnswer(network, isa, processor, ran.returncode == 1 and _LACKS in text, text)


def _call(command: list[str]) -> None:
    """Runs a command.

    Raises:
        NotBuilt: it failed; the text is its last line.
    """
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NotBuilt(((ran.stderr or ran.stdout).strip().splitlines() or ["it failed"])[-1])
