"""The threads of TVM, and what it says of code that it cannot keep."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bricolage.backends import registry, tvm, tvm_threads
from bricolage.backends.interface import Refused, Resources
from bricolage.native.cpu import toolchain
from tests.backends import regions


@pytest.mark.apart
def test_each_call_has_the_threads_of_its_kernel(tmp_path: Path) -> None:
    """Also from a thread that has not called TVM before, and the thread that calls may run where it might before."""
    from tvm import get_global_func

    model, backend = (
        regions.region(tmp_path, "y = MatMul (x, w)", "float[64, 32] x", "float[64, 32] y", w=regions.noise(32, 32)),
        registry.get("tvm"),
    )
    x = regions.noise(*model.inputs[0].sizes)
    kernels = [backend.compile(model, regions.F32, Resources(threads=threads)) for threads in (1, 3, 2)]
    cores = os.sched_getaffinity(0)
    called: list[int] = []

    def call_all() -> None:
        for kernel in kernels:
            assert regions.error([*kernel.run([x])], regions.reference(model, x)) < 1e-5
            called.append(get_global_func("runtime.NumThreads")())

    elsewhere = threading.Thread(target=call_all)
    call_all()
    elsewhere.start()
    elsewhere.join()
    assert called == 2 * [1, 3, 2]
    assert os.sched_getaffinity(0) == cores


@pytest.mark.apart
def test_a_pool_of_others_that_is_too_small_is_refused() -> None:
    """A pool never grows."""
    from tvm import get_global_func

    choose = tvm_threads.tvm_thread_chooser(Resources(threads=2), "TVM")
    refused: list[Refused] = []

    def call() -> None:
        get_global_func("runtime.NumThreads")()  # makes the pool of this thread
        try:
            choose()
        except Refused as error:
            refused.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_NUM_THREADS", "1")
        elsewhere = threading.Thread(target=call)
        elsewhere.start()
        elsewhere.join()
    assert "its threads are 1 where it is called from, and 2 were asked for" in str(refused[0])


@pytest.mark.apart
def test_threads_that_spin_against_the_rule_are_told() -> None:
    warned: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tvm_threads._LOG, "warning", lambda text, *words: warned.append(text % words))
        patch.setitem(tvm_threads._spinning, os.getpid(), True)
        tvm_threads.tvm_thread_chooser(Resources(threads=1), "TVM")
        assert not warned
        tvm_threads.tvm_thread_chooser(Resources(threads=2), "TVM")
        assert len(warned) == 1 and warned[0].startswith("TVM's waiting threads spin in this process, and not sleep")


def test_code_that_cannot_be_kept_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forgotten = (toolchain.compiler.cache_clear, tvm._can_link.cache_clear)
    monkeypatch.setenv(toolchain.FORCED_COMPILER_VARIABLE, "none")
    for forget in forgotten:
        forget()
    assert not tvm._can_link() and not tvm._can_link()
    assert caplog.text.count("cannot be kept: that needs a C compiler") == 1
    monkeypatch.delenv(toolchain.FORCED_COMPILER_VARIABLE)
    for forget in forgotten:
        forget()


def test_what_is_not_linked_says_why(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not link it"):
        tvm._link(str(tmp_path / "region.so"), [str(tmp_path / "missing.o")])
