"""The process of one campaign: `python -m benchmarks.fuzz.worker NAME FIRST BLOCKS SIZE FOLDER` tries blocks of seeds.

It writes a line of JSON before each block, with its seeds, and one behind it, with what came of them.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import threading
from pathlib import Path

from benchmarks.fuzz.campaigns import campaigns


def main(name: str, first: int, blocks: int, size: int, folder: Path) -> None:
    """Tries `blocks` blocks of `size` seeds from `first` on; ends early where its input ends."""
    faulthandler.enable()
    threading.Thread(target=_end_with_input, daemon=True).start()
    logging.disable(logging.WARNING)
    campaign = campaigns()[name]
    told = sys.stdout
    sys.stdout = sys.stderr  # what libraries print does not belong among the lines
    for start in range(first, first + blocks * size, size):
        print(json.dumps({"trying": [start, size]}), file=told, flush=True)
        done = campaign.run(name, range(start, start + size), folder)
        print(done.line(), file=told, flush=True)


def _end_with_input() -> None:
    """Whoever started the process is gone when its input ends."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
