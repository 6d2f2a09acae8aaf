"""PyTorch and Inductor: each call computes with the threads of its kernel, whatever others have set before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from tests.backends import regions


@pytest.mark.parametrize("name", ["torch", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.apart])])
def test_each_call_has_the_threads_of_its_kernel(name: str, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    model, backend = regions.conv_net(tmp_path), registry.get(name)
    x = regions.noise(*model.inputs[0].sizes)
    one, three = (backend.compile(model, regions.F32, Resources(threads=threads)) for threads in (1, 3))
    called: list[int] = []

    def call_all() -> None:
        torch.set_num_threads(2)
        for kernel in (one, three, one.replica(Resources(threads=1)) or one):
            kernel.run([x])  # the first looks at the results, the second does not
            kernel.run([x])
            called.append(torch.get_num_threads())
        _, _, call = regions.bound(three, model, x)
        call()
        called.append(torch.get_num_threads())

    elsewhere = threading.Thread(target=call_all)
    call_all()
    elsewhere.start()
    elsewhere.join()
    torch.set_num_threads(before)
    assert called == 2 * [1, 3, 1, 3]
