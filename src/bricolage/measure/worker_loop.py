"""The loop of a worker process: it reads commands, carries each out, and answers.

    python -m bricolage.measure [--entry MODULE:NAME] [--parent PID] [--cores N,N] [--register name=module:Class]...

The first line on standard input is the device that the worker works for, as JSON. Commands come as lines of JSON after it, and
every command is answered by one line on what was standard output at the start. Before its answer a command may tell how far it is,
in lines of their own. Frameworks print on standard output, so the descriptors are moved away first and file descriptor 1 joins
standard error, which the parent keeps as a log. What a worker can do is a mapping from names to functions, which `--entry` makes.
Tensors and models go by file; nothing on the pipes is pickled.

On SIGUSR1 a worker writes into its log where its main thread is, even if that hangs in native code (`faulthandler`).
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TypeAlias

from bricolage.base import telemetry
from bricolage.base.codec import decode
from bricolage.device.device import Device
from bricolage.errors import MissingBackend, Refused, UnsupportedOperator
from bricolage.runtime.process_environment import end_with_parent

Command: TypeAlias = Callable[..., Mapping[str, object]]
"""Its parameters are the fields of the command line; it returns the facts of the answer. An exception becomes an answer as well."""
Commands: TypeAlias = Mapping[str, Command]
Tell: TypeAlias = Callable[[object], None]
"""Tells the parent something in JSON before the answer. The command's time limit begins again with it."""

_ENTRY = "bricolage.measure.worker:commands"
_REASON_LENGTH = 500


def unheard(_told: object) -> None:
    """Drops what is told."""


def handle(commands: Commands, line: bytes) -> dict[str, object]:
    """Carries out one command line and returns the answer."""
    facts = json.loads(line)
    name = facts.pop("command")
    if name not in commands:
        return {"outcome": "failed", "reason": f"unknown command '{name}'"}
    try:
        answer = commands[name](**facts)
    except (Refused, UnsupportedOperator, MissingBackend) as error:
        return {"outcome": "refused", "reason": error.sentence[:_REASON_LENGTH]}
    except MemoryError as error:
        return {"outcome": "out-of-memory", "reason": f"MemoryError: {error}"[:_REASON_LENGTH]}
    except Exception as error:  # the boundary of the process: every failure becomes an answer with its reason
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"[:_REASON_LENGTH]}
    return {"outcome": "ok", **answer}


def import_function(place: str) -> Callable[..., object]:
    """The function or class at "module:name"."""
    home, _, name = place.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(home), name)
    return function


def main(arguments: list[str]) -> None:
    """Answers commands until the input ends."""
    commands, answers = _claim_protocol()
    telemetry.disable()
    options = {"--parent": "", "--cores": "", "--entry": _ENTRY}
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        if name == "--register":
            from bricolage.backends import registry

            registry.register(*value.split("=", 1))
        else:
            options[name] = value
    if options["--cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in options["--cores"].split(",")})
    end_with_parent(int(options["--parent"]) if options["--parent"] else None)
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands, lines), daemon=True).start()
    device = decode(Device, json.loads(lines.get()), "device")
    handlers = _make_commands(options["--entry"], device, lambda message: _write(answers, {"told": message}))
    while True:
        _write(answers, handle(handlers, lines.get()))


def _make_commands(entry: str, device: Device, tell: Tell) -> Commands:
    """What this worker can do."""
    commands = import_function(entry)(device, tell)
    assert isinstance(commands, Mapping)
    return commands


def _write(descriptor: int, answer: Mapping[str, object]) -> None:
    data = (json.dumps(answer) + "\n").encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _claim_protocol() -> tuple[int, int]:
    """Moves the protocol's descriptors out of the frameworks' way: (commands, answers). They are not inherited."""
    sys.stdout.flush()
    commands, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, answers


def _read_commands(descriptor: int, lines: queue.SimpleQueue[bytes]) -> None:
    """Feeds the queue; at the end of the input the parent is gone, and this process ends at once with its children."""
    with os.fdopen(descriptor, "rb") as file:
        for line in file:
            lines.put(line)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
