"""Programs of a decoder that other processes compile, while this one writes text by those that are ready."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bricolage.base.cache import trim
from bricolage.base.codec import decode, encode
from bricolage.base.options import available_cores
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.device.memory import available_bytes
from bricolage.errors import BricolageError
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_memory import count_compiling_bytes
from bricolage.frontends.decoders.decoder_program import DecoderProgram
from bricolage.language.decoder_code import ProgramSettings, compile_decoder_program
from bricolage.language.decoder_identity import identify_decoder

_LOG = logging.getLogger(__name__)
_LIMIT_S = 600.0
"""For one program."""
_OF_A_PROCESS = 512 << 20
"""Bytes, in addition."""
_NICENESS = 10
"""Texts come first."""
_PATIENCE_S = 2.0
"""Until something is compiled that is not waited for: a short text ends before, and would only be slowed down."""


class ProgramCompiler:
    """A thread with processes that compile programs in their order, soon, or at once where one is waited for. It ends with the last
    program, or when it is closed."""

    def __init__(
        self, decoder: DecoderDescription, settings: ProgramSettings, programs: Sequence[DecoderProgram]
    ) -> None:
        """The decoder is one of a file, which the processes read again."""
        first = decoder.sources[0].path
        self._path = first.parent if first.name == "config.json" else first
        self._settings = settings
        self._done = {program: threading.Event() for program in programs}
        """Set when a program is compiled, or is not going to be by this."""
        fitting = available_bytes() // (count_compiling_bytes(decoder) + _OF_A_PROCESS)
        self._jobs = max(1, min(available_cores(), len(programs), fitting))
        self._closed = False
        self._hurry = threading.Event()
        """Set once a program is waited for, or none is any more."""
        self._thread = threading.Thread(target=self._run, name="bricolage-programs", daemon=True)
        self._thread.start()

    def is_compiling(self, program: DecoderProgram) -> bool:
        """Whether it is, or waits for its turn."""
        return program in self._done and not self._done[program].is_set()

    def wait(self, program: DecoderProgram) -> None:
        """Until it is not compiled here any more: it is ready then, or was refused."""
        self._hurry.set()
        self._done[program].wait()

    def close(self) -> None:
        """Ends the processes."""
        self._closed = True
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        self._hurry.wait(_PATIENCE_S)
        try:
            if not self._closed:
                self._compile_all()
        except (
            BricolageError,
            OSError,
            RuntimeError,
        ):  # who waits for a program compiles it then, and meets the reason
            _LOG.exception("programs are not compiled behind")
        finally:
            for event in self._done.values():
                event.set()

    def _compile_all(self) -> None:
        from bricolage.measure.launch import EntryPoint
        from bricolage.measure.pool import Pool
        from bricolage.measure.specs import Regime

        module = "bricolage.language.program_compiler"
        waiting, busy = deque(self._done), dict[Regime, DecoderProgram]()
        threads, device = self._settings.threads, host()
        idle = [Regime(("native",), threads, False, device, owner=f"programs {n}") for n in range(self._jobs)]
        with Pool(entry=EntryPoint(f"{module}:commands", (module,))) as pool:
            while (waiting or busy) and not self._closed:
                while waiting and idle:
                    regime, program = idle.pop(), waiting.popleft()
                    facts = {"path": str(self._path), "program": encode(program), "settings": encode(self._settings)}
                    pool.submit(pool.worker(regime), _LIMIT_S, "compile_program", **facts)
                    busy[regime] = program
                for worker, answer in pool.wait(0.2):
                    if not answer.ok:
                        _LOG.info("a program was not compiled behind: %s", answer.reason)
                    self._done[busy.pop(worker.regime)].set()
                    idle.append(worker.regime)


def commands(device: Device, _tell: Callable[[object], None]) -> Mapping[str, Callable[..., Mapping[str, object]]]:
    """What a process does that compiles programs (`measure.worker_loop`)."""
    from bricolage.language.any_decoder import read_any_decoder

    del device
    os.nice(_NICENESS)
    trim()
    decoders: dict[str, DecoderDescription] = {}

    def compile_one(path: str, program: object, settings: object) -> Mapping[str, object]:
        if path not in decoders:
            decoders[path] = read_any_decoder(Path(path))
        decoder = decoders[path]
        wanted, how = decode(DecoderProgram, program, "program"), decode(ProgramSettings, settings, "settings")
        compile_decoder_program(decoder, identify_decoder(decoder), wanted, how)
        return {}

    return {"compile_program": compile_one}
