"""Networks to measure: the six, the paper's five, the light ONNX networks and the demo's sentence embedder.

Importing this package is cheap: frameworks are loaded when a workload is built or exported.
"""

from benchmarks.workloads.exporting import cache_directory, export
from benchmarks.workloads.registry import Workload, workloads

__all__ = ["Workload", "cache_directory", "export", "workloads"]
