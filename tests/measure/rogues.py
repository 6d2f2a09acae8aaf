"""Backends that misbehave in every way there is, and one that does not. They run regions of a single Relu."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import Available, Backend, Claim, Kind, RegionModel, Resources, Status
from bricolage.backends.kernel import Call, Kernel
from bricolage.backends.kernel_trials import Build, KernelTiming, Trial, Trials
from bricolage.base.cache import cache_directory
from bricolage.errors import Refused
from bricolage.work.config_space import ConfigSpace, TuningTask
from bricolage.work.implementation import KernelConfig, Scalar

_hoard: list[np.ndarray] = []


class _Relu(Kernel):
    def __init__(self, before: Callable[[], object], factor: float = 1.0) -> None:
        self._before, self._factor = before, factor

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
        source, target = inputs[0], outputs[0]

        def call() -> None:
            self._before()
            np.maximum(source, 0, out=target)
            if self._factor != 1.0:
                np.multiply(target, self._factor, out=target)

        return call

    def run(self, inputs: Sequence[object]) -> list[object]:
        self._before()
        return [np.maximum(np.asarray(inputs[0]), 0) * self._factor]


class Honest(Backend):
    """Does its work. The name of the configuration is the time a call takes, in milliseconds."""

    name: ClassVar[str] = "honest"
    kind: ClassVar[Kind] = "kernels"
    spoken_version: ClassVar[str] = "1.0"

    def status(self) -> Status:
        return Available(self.spoken_version)

    def claims(self) -> Iterable[Claim]:
        return ()

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        del region, resources
        self.when_compiled()
        name = config.name
        seconds = float(name) / 1e3 if name.replace(".", "").isdigit() else 0.0
        return _Relu(lambda: self.when_run(seconds), self.factor)

    factor: ClassVar[float] = 1.0

    def when_compiled(self) -> None:
        pass

    def when_run(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)  # a busy loop would measure who else is using the machine


class Twin(Honest):
    name: ClassVar[str] = "twin"


class Computes(Honest):
    """Takes processor time instead."""

    name: ClassVar[str] = "computes"

    def when_run(self, seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass


class Labours(Computes):
    name: ClassVar[str] = "labours"


class Blind(Honest):
    """Right unless all that it is given is negative."""

    name: ClassVar[str] = "blind"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        del region, config, resources
        return _Blind(lambda: None)


class _Blind(_Relu):
    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
        usual = super().bind(inputs, outputs)

        def call() -> None:
            usual()
            if (inputs[0] < 0).all():
                outputs[0][...] = inputs[0]

        return call


class Slow(Honest):
    """Takes a second to compile."""

    name: ClassVar[str] = "slow"

    def when_compiled(self) -> None:
        time.sleep(1.0)


class Segfaults(Honest):
    """Writes to address 1 when compiled, or when run where the configuration says "run"."""

    name: ClassVar[str] = "segfaults"

    def when_compiled(self) -> None:
        print("about to step into nothing", file=sys.stderr, flush=True)
        ctypes.memset(1, 0, 1)


class SegfaultsLater(Honest):
    """Runs well three times, as a check does, and then crashes while it is timed."""

    name: ClassVar[str] = "segfaults-later"
    runs = 0

    def when_run(self, seconds: float) -> None:
        del seconds
        self.runs += 1
        if self.runs > 3:
            ctypes.memset(1, 0, 1)


class Hangs(Honest):
    """Holds the interpreter's lock for ever, so that not even a signal handler of Python would run."""

    name: ClassVar[str] = "hangs"

    def when_compiled(self) -> None:
        ctypes.PyDLL(None).pause()


class Leaks(Honest):
    """Takes memory and touches it, 16 MB at a time, and keeps it."""

    name: ClassVar[str] = "leaks"

    def when_compiled(self) -> None:
        _hoard.extend(np.ones(16 << 20, dtype=np.uint8) for _ in range(100))
        time.sleep(30)


class Raises(Honest):
    name: ClassVar[str] = "raises"

    def when_compiled(self) -> None:
        raise RuntimeError("the moon is in the wrong phase")


class Refuses(Honest):
    name: ClassVar[str] = "refuses"

    def when_compiled(self) -> None:
        raise Refused(backend="Refuses", reason="not on Sundays")


class Wrong(Honest):
    """Is off by 1 %."""

    name: ClassVar[str] = "wrong"
    factor: ClassVar[float] = 1.01


class Silent(Honest):
    """Never writes its output."""

    name: ClassVar[str] = "silent"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        del region, config, resources

        class Nothing(_Relu):
            def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Call:
                del inputs, outputs
                return lambda: None

        return Nothing(lambda: None)


class Chatters(Honest):
    """Prints on standard output from Python and below it, as frameworks do."""

    name: ClassVar[str] = "chatters"

    def when_compiled(self) -> None:
        print('{"outcome": "ok"}', flush=True)
        os.write(1, b'{"outcome": "ok", "rounds": [[0.0]]}\n')
        os.system("echo from a child")


class Exits(Honest):
    name: ClassVar[str] = "exits"

    def when_compiled(self) -> None:
        os._exit(7)


class Killed(Honest):
    """Its process is killed, as by somebody else, the first N times that it compiles; the configuration's name is N."""

    name: ClassVar[str] = "killed"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        _note("killed", config.name)
        if len(noted("killed")) <= int(config.name):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compile(region, config, resources)


class KilledLater(Honest):
    """Runs well three times, as a check does; then its process is killed while it is timed, once."""

    name: ClassVar[str] = "killed-later"
    runs = 0

    def when_run(self, seconds: float) -> None:
        del seconds
        self.runs += 1
        if self.runs > 3 and not noted("killed-later"):
            _note("killed-later", "once")
            os.kill(os.getpid(), signal.SIGKILL)


class Tunes(Honest):
    """Two tasks with made-up times: "first" (two kernels) is twice as fast with n = 5, "second" no faster than usual; `noted` tells
    what was tried. The name of the configuration says how it goes: "f32" well, "refuse" states no space, "crash" and "hang" end at
    n = 5, "even" has nothing faster."""

    name: ClassVar[str] = "tunes"
    tunable: ClassVar[bool] = True

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        del region, resources
        if config.name == "refuse":
            raise Refused(backend="Tunes", reason="not on Sundays")
        first = TuningTask("first", {"n": tuple(range(1, 9))}, ("0.", "1."), "a workload", "relu", {"elements": 1024})
        second = TuningTask("second", {"flag": (True,), "m": (1, 2)}, ("2.",), "another", "relu", {"elements": 4096})
        return ConfigSpace(config.base, (first, second))

    def trials(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Trials:
        del region
        _note("opened", f"{config.text} {resources.threads} {resources.device.isa}")
        return MadeUpTrials(config.name)

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        if config not in self.space(region, config, resources):
            raise Refused(backend="Tunes", reason=f"unknown parameters: {config.text}")
        _note("compiled", config.text)
        return super().compile(region, config.base, resources)


class MadeUpTrials(Trials):
    tasks_a_build = 2
    builds_at_once = 2

    def __init__(self, way: str) -> None:
        self.way = way

    def usual(self, rounds: int) -> Mapping[str, float]:
        del rounds
        return {"first": 4.0, "second": 1.0}

    def run(self, builds: Sequence[Build], rounds: int) -> list[Mapping[str, Trial]]:
        return [{task: self._trial(task, dict(choice), rounds) for task, choice in build.items()} for build in builds]

    def _trial(self, task: str, choice: Mapping[str, Scalar], rounds: int) -> Trial:
        _note("tried", f"{task} {dict(choice)} {rounds}")
        wanted = choice.get("n") == 5
        if wanted and self.way == "crash":
            ctypes.memset(1, 0, 1)
        if wanted and self.way == "hang":
            ctypes.PyDLL(None).pause()
        if choice.get("n") == 8:
            return "eight is too many"
        usual = 4.0 if task == "first" else 1.0
        gains = wanted and self.way != "even"
        return KernelTiming((usual * (0.5 if gains else 1.1),) * rounds, (usual,) * rounds)


def _note(what: str, line: str) -> None:
    with (cache_directory() / f"rogue-{what}").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def noted(what: str) -> list[str]:
    """A line for each time that `Tunes` "opened" trials (configuration, threads, instruction set), "tried" a choice (task, choice,
    rounds) or "compiled" (configuration), in whichever process."""
    path = cache_directory() / f"rogue-{what}"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


ALL: tuple[type[Honest], ...] = (
    *(
        Honest,
        Twin,
        Computes,
        Labours,
        Blind,
        Slow,
        Segfaults,
        SegfaultsLater,
        Hangs,
        Leaks,
        Raises,
        Refuses,
        Wrong,
        Silent,
        Chatters,
        Exits,
    ),
    *(Killed, KilledLater, Tunes),
)


def register_all() -> None:
    for rogue in ALL:
        registry.register(rogue.name, f"{rogue.__module__}:{rogue.__name__}")
