"""A worker process (`worker`): python -m bricolage.measure [--parent PID] [--cores N,N] [--register name=module:Class]..."""

from __future__ import annotations

import sys

from bricolage.late_imports import import_late

import_late()  # before anything imports onnx_ir: a decision starts dozens of workers

from bricolage.measure.worker import main  # noqa: E402

main(sys.argv[1:])
