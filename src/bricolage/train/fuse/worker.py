"""A process that trains some lanes of a sweep on command, beside others that train the rest.

    python -m bricolage.train.fuse.worker DESCRIPTOR PARENT

Commands and answers are pickles on a pipe from the process that started it, which is this program itself: what it sends is
trusted. A worker whose parent is gone ends.
"""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

from bricolage.train.fuse.contestants import Contestant, prepared

_WARM_S = 0.01


def main() -> int:
    """Serves commands until the pipe is closed."""
    pipe, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
    contestant: Contestant | None = None
    while True:
        try:
            name, arguments = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return 0
        try:
            answer: Any = None
            if name == "prepare":
                contestant = prepared(*arguments)
                contestant.run(_WARM_S)
            elif contestant is not None:
                answer = contestant.run(*arguments) if name == "run" else contestant.finish(_Teller(pipe, parent))
            _send(pipe, "done", answer)
        except Exception as error:  # told to the parent, which says it to the user
            _send(pipe, "failed", f"{type(error).__name__}: {error}")


class _Teller:
    """Reports progress, and ends the process where nobody listens any more."""

    def __init__(self, pipe: Connection, parent: int) -> None:
        self._pipe = pipe
        self._parent = parent

    def __call__(self, samples: int) -> None:
        if os.getppid() != self._parent:
            os._exit(1)
        _send(self._pipe, "told", samples)


def _send(pipe: Connection, kind: str, answer: object) -> None:
    pipe.send_bytes(pickle.dumps((kind, answer), protocol=pickle.HIGHEST_PROTOCOL))


if __name__ == "__main__":
    sys.exit(main())
