"""What the processes of these tests' groups do, some of them badly."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bricolage.base.codec import encode
from bricolage.device.device import Device
from bricolage.measure.launch import EntryPoint
from bricolage.measure.worker_loop import Commands, Tell

_HERE = "tests.measure.ranks"
GOOD, DIES, SLEEPS = (EntryPoint(f"{_HERE}:{name}", (_HERE,)) for name in ("good", "dies_first", "sleeps_first"))


def ready(threads: int) -> dict[str, object]:
    return {"threads": threads}


def join(rank: int, size: int, store: str, timeout_s: float) -> dict[str, object]:
    """As `torch.distributed` does: waits for the others, and fails where they do not come."""
    Path(f"{store}-{rank}").touch()
    end = time.monotonic() + timeout_s
    while not all(Path(f"{store}-{one}").exists() for one in range(size)):
        if time.monotonic() > end:
            raise RuntimeError("DistStoreError: timed out waiting for clients")
        time.sleep(0.01)
    return {"rank": rank}


def late(rank: int, size: int, store: str, timeout_s: float) -> dict[str, object]:
    """The last rank never comes."""
    if rank == size - 1:
        time.sleep(600)
    return join(rank, size, store, timeout_s)


def step(folder: str, act: str = "") -> dict[str, object]:
    """Works, or does what it is told to."""
    print("it prints this", flush=True)
    if act == "die":
        os._exit(7)
    if act == "raise":
        raise ValueError("no such weather")
    if act == "hang":
        time.sleep(600)
    if act == "wait":  # for the one that hangs or has died
        time.sleep(0.3)
        raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
    Path(folder, f"{os.getpid()}").touch()
    return {"pid": os.getpid()}


def good(device: Device, tell: Tell) -> Commands:
    def count(to: int, pause_s: float) -> dict[str, object]:
        for number in range(to):
            time.sleep(pause_s)
            tell(number)
        return {"to": to}

    def told() -> dict[str, object]:
        return {"device": encode(device)}

    return {"ready": ready, "join": join, "step": step, "count": count, "late": late, "device": told}


def dies_first(_device: Device, _tell: Tell) -> Commands:
    print("there is no driver for this", flush=True)
    os._exit(7)


def sleeps_first(_device: Device, _tell: Tell) -> Commands:
    time.sleep(600)
    return {}
