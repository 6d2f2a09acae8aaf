"""XLA: its threads and instructions are those that a kernel may use, whatever the process has set before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bricolage.backends import registry, xla
from bricolage.backends.interface import Refused, Resources
from tests.backends import regions
from tests.backends.regions import wait_for_threads

WORKER = "tf_XLAEigen"


@pytest.mark.apart
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows the threads of a process")
def test_each_number_of_threads_has_a_client_of_its_own(tmp_path: Path) -> None:
    """The process's own JAX stays as it is: a client takes its threads from the environment, once."""
    import jax

    jax.devices()
    before, variable = wait_for_threads(WORKER, 1), os.environ.get("NPROC")
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[64, 32] x", "float[64, 32] y", w=regions.noise(32, 32))
    for threads in (5, 7):  # which no other test of this process asks for: a client is made once
        kernel = registry.get("xla").compile(model, regions.F32, Resources(threads=threads))
        x = regions.noise(*model.inputs[0].sizes)
        assert regions.error([*kernel.run([x])], regions.reference(model, x)) < 1e-5
    late = os.cpu_count() or 1  # threads of the process's own client, which may name themselves after they were counted
    assert before + 12 <= wait_for_threads(WORKER, before + 12) <= before + 12 + late
    assert os.environ.get("NPROC") == variable


@pytest.mark.apart
def test_instructions_that_the_process_has_not_are_refused() -> None:
    """XLA reads its flags once."""
    variable = os.environ.get("XLA_FLAGS")
    xla._place(1, "", (0,))
    with pytest.raises(Refused, match="read before in this process.*AVX2 was asked for"):
        xla._place(1, "avx2", (0,))
    assert os.environ.get("XLA_FLAGS") == variable


def test_only_the_user_limits_instructions_further(monkeypatch: pytest.MonkeyPatch) -> None:
    xla._check_instructions("avx512", b"-AVX512_BF16-")
    xla._check_instructions("", b"--")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.raises(Refused, match="instruction set AVX2, and that of the processor was asked for"):
        xla._check_instructions("", b"-AVX2-")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    xla._check_instructions("", b"-AVX2-")
