"""A plan over links that are held to a bandwidth; where networks may not be made here, there is nothing to try."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tools.links import Networks, NoNetworks, PlanProcesses, link_of
from bricolage.train.run.document import write_plan
from tests.train.run.made import plan

SENT = 4_000_000
_RECEIVER = """
import socket, sys, time
server = socket.create_server(("", 29412)); print("ready", flush=True)
peer, _ = server.accept(); size, begun = 0, time.perf_counter()
while part := peer.recv(1 << 16): size += len(part)
print(size, time.perf_counter() - begun)
"""
_SENDER = """
import socket
socket.create_connection(("{address}", 29412)).sendall(bytes({size}))
"""
WIDE_BYTES = 4 * 3_000_000
"""At least, of the weights of `code.py:wide`."""


def networks(bandwidth: str) -> Networks:
    """Two, or the test is skipped."""
    try:
        return Networks(2, bandwidth)
    except NoNetworks as error:
        pytest.skip(f"no networks can be made here: {error}")


def test_a_link_hands_over_no_more_than_its_bandwidth() -> None:
    with networks("400mbit") as joined:
        command = [*joined.inside(0), sys.executable, "-S", "-c", _RECEIVER]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
            sender = _SENDER.format(address=joined.address(0), size=SENT)
            subprocess.run([*joined.inside(1), sys.executable, "-S", "-c", sender], check=True, timeout=60)
            size, seconds = receiver.stdout.readline().split()
        names = joined.names
    assert int(size) == SENT
    assert float(seconds) * 1e3 > 0.8 * link_of("400mbit").ms(SENT), "a full bucket spares a little"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(one in left for one in names), "networks go when they are closed"


@pytest.mark.slow
def test_a_slow_link_holds_back_what_exchanges_gradients(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from bricolage.train.run.launch_plan import read_result

    write_plan(plan(2, module="wide"), tmp_path)
    with networks("400mbit") as joined:
        joined.run_plan(tmp_path, PlanProcesses(0.1, 60.0, 1))
    found = read_result(tmp_path)
    assert found is not None and not found.failures
    # Each process sends and receives the gradients of all weights once.
    assert found.measured["data parallel"].median_ms > 0.8 * link_of("400mbit").ms(WIDE_BYTES)
    assert found.measured[found.kept].median_ms <= found.measured["data parallel"].median_ms
