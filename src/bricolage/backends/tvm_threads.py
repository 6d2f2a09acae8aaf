"""The threads of TVM's runtime. It has a pool for each thread that calls it, and at each call as many of the pool are used as the
kernel may use."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from bricolage.base.options import available_cores
from bricolage.errors import Refused
from bricolage.graph.region_model import Resources

_LOG = logging.getLogger(__name__)
_SHARED = -3
"""TVM's number of a pool whose threads all have the same cores; those they have already, since binding is switched off."""
_LEAST = 4
"""Threads of a pool. It never grows, and those that get no work sleep."""
_SPINS = "TVM_THREAD_POOL_SPIN_COUNT"
_BINDS = "TVM_BIND_THREADS"
_callers = threading.local()
"""Of a thread that calls: the number of threads that its pool was told last."""
_spinning: dict[int, bool] = {}
"""By process, whether threads of TVM spin while they wait: read once, when the first of them starts."""


def tvm_environment(resources: Resources) -> dict[str, str]:
    """Variables of a process in which TVM runs."""
    # Waiting threads that spin are faster, but they steal the cores from the next runtime.
    return {_BINDS: "0", **({} if resources.alone else {_SPINS: "0"})}


def tvm_thread_chooser(resources: Resources, title: str) -> Callable[[], None]:
    """What is called in front of each call of a kernel, in the same thread: from then on TVM computes there with the threads of
    `resources`. By itself it would take those of the environment, or half of the processors, and keep the calling thread on the
    first of them. `title` is the backend's.

    Raises:
        Refused: see `choose`.
    """
    import tvm

    os.environ.update(tvm_environment(resources))
    if _spinning.setdefault(os.getpid(), resources.alone) != resources.alone and resources.threads > 1:
        kept, asked = ("spin", "sleep") if not resources.alone else ("sleep", "spin")
        _LOG.warning(
            "TVM's waiting threads %s in this process, and not %s: the first program of TVM decided", kept, asked
        )
    threads, most = resources.threads, max(resources.threads, available_cores(), _LEAST)
    current = tvm.get_global_func("runtime.NumThreads")
    configure = tvm.get_global_func("runtime.config_threadpool")

    def choose() -> None:
        """Sets the number where another one holds.

        Raises:
            Refused: the pool of the calling thread was made by others, and is smaller.
        """
        last_threads = getattr(_callers, "threads", 0)
        if last_threads == threads == current():
            return
        if not last_threads:
            configure(_SHARED, most, ["0"] * most)
        configure(_SHARED, threads, ["0"] * threads)
        if (given := current()) != threads:
            reason = f"its threads are {given} where it is called from, and {threads} were asked for"
            raise Refused(backend=title, reason=reason)
        _callers.threads = threads

    choose()
    return choose
