"""The plan in Python as a contestant of `benchmarks.exported`; what it reads and prints, `programs/turns.h` says.

python -m benchmarks.exported.in_python FOLDER THREADS ARTIFACT
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    """The command."""
    import numpy as np

    import bricolage
    from bricolage.device.buffers import allocate_aligned

    folder, executable = Path(sys.argv[1]), bricolage.load(sys.argv[3])
    with np.load(folder / "inputs.npz", allow_pickle=False) as file:
        inputs = {name: allocate_aligned(file[name].shape, file[name].dtype) for name in file.files}
        for name, array in inputs.items():
            array[...] = file[name]
    run = executable.bind(inputs)
    opened = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    run()
    answered = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    # Before it is said, so that who waits for that reads the whole answer.
    (folder / "outputs.bin").write_bytes(b"".join(array.tobytes() for array in run.outputs.values()))
    print(f"opened {opened}\nanswered {answered}", flush=True)
    for line in sys.stdin:
        begun = time.perf_counter_ns()
        for _ in range(int(line)):
            run()
        print(f"turn {(time.perf_counter_ns() - begun) // int(line)}", flush=True)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(f"resident_kb {status.partition('VmRSS:')[2].split()[0]}")


if __name__ == "__main__":
    main()
