"""A worker process (`loop`): python -m bricolage.measure --entry MODULE:NAME [--parent PID] [--cores N,N]
[--register name=module:Class]...

python -m bricolage.measure --fork-server DESCRIPTOR MODULE...: a process that becomes workers (`fork_server`).
"""

from __future__ import annotations

import sys

from bricolage.base.late_imports import import_late

import_late()  # before anything imports onnx_ir: a decision starts dozens of workers

from bricolage.measure import fork_server  # noqa: E402
from bricolage.measure.worker_loop import main  # noqa: E402

if sys.argv[1:2] == [fork_server.FLAG]:
    fork_server.serve_forks(int(sys.argv[2]), sys.argv[3:], main)
main(sys.argv[1:])
