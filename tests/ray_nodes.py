"""A real Ray cluster of processes on this machine, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bricolage.base.signal_handlers import keep_handlers

ROOT = Path(__file__).parents[1]


@contextmanager
def ray_network(head: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """`ray.cluster_utils.Cluster`, whose head offers nothing but what `head` says."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster as Network

    # A node that runs in this process takes the signal, and keeps it.
    with keep_handlers(signal.SIGTERM):
        started = Network(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "env_vars": imports(), **(head or {})},
        )
    started.add_node = keep_handlers(signal.SIGTERM)(started.add_node)
    try:
        yield started
    finally:
        started.shutdown()


def imports() -> dict[str, str]:
    """Variables of a node on which this source tree can be imported."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
