"""The demo's model as a C library: nearest neighbours of real sentences from a program without Python.

    make demo-c

Decides for MiniLM with our engine alone, exports the plan, builds and installs it with CMake in a folder of its own, builds
`neighbours.c` against what was installed, and compares the neighbours that the program prints with those of the plan in Python.
Needs CMake and a C compiler. Leaves everything in `out/demo-c/`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import bricolage
from benchmarks.workloads.minilm import export_minilm, nearest_neighbours, tokenize
from benchmarks.workloads.sentences import GROUPS

_HERE = Path(__file__).parent
_BRICOLAGE = (sys.executable, "-m", "bricolage.cli.main")


def main(out: Path = Path("out/demo-c")) -> int:
    """Runs the demo; the exit code is 0 where C and Python give every sentence the same neighbour.

    Raises:
        subprocess.CalledProcessError: something does not build.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    model, data, artifact = out / "minilm.onnx", out / "sentences.npz", out / "minilm.bricolage"
    sentences = [sentence for group in GROUPS.values() for sentence in group]
    tokens = tokenize(sentences)
    export_minilm(model)
    np.savez(data, allow_pickle=False, **tokens)
    shapes = [f"--shape=batch={len(sentences)}", f"--shape=sequence={tokens['input_ids'].shape[1]}"]
    words = ["--input", str(data), *shapes, "--backend", "native", "--effort", "instant"]
    _call(*_BRICOLAGE, "optimize", str(model), "-o", str(artifact), *words)
    _call(*_BRICOLAGE, "export", str(artifact), "-o", str(out / "minilm-c"))
    _call("cmake", "-S", str(out / "minilm-c"), "-B", str(out / "library"))
    _call("cmake", "--build", str(out / "library"), "-j2")
    _call("cmake", "--install", str(out / "library"), "--prefix", str(out / "installed"))
    _call("cmake", "-S", str(_HERE), "-B", str(out / "program"), f"-DCMAKE_PREFIX_PATH={(out / 'installed').resolve()}")
    _call("cmake", "--build", str(out / "program"))
    executable = bricolage.load(artifact)
    expected = nearest_neighbours(executable(**tokens))
    given = [tokens[spec.name].astype(np.int64) for spec in executable.inputs]
    (out / "tokens.bin").write_bytes(b"".join(array.tobytes() for array in (np.int64(given[0].shape), *given)))
    for threads in (1, 2):
        command = [out / "program" / "neighbours", out / "installed" / "share" / "minilm", out / "tokens.bin", threads]
        printed = _call(*map(str, command))
        same = [int(line) for line in printed.split()] == expected.tolist()
        print(
            f"{threads} thread{'s' * (threads > 1)}: C and Python {'agree' if same else 'DIFFER'} on all {len(sentences)}."
        )
        if not same:
            return 1
    for i in range(0, len(sentences), len(sentences) // 3):
        print(f"  {sentences[i]!r}\n    → {sentences[int(expected[i])]!r}")
    return 0


def _call(*command: str) -> str:
    print("$", " ".join(command), flush=True)
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main())
