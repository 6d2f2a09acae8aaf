"""What a worker process does with programs: compiles, runs and times them on command (`loop`), so that a backend that crashes
takes only this process along. The commands are the methods of `Worker`."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel_trials import Trials
from bricolage.base.codec import decode, encode
from bricolage.device.buffers import in_buffer
from bricolage.device.device import Device
from bricolage.errors import BricolageError, InvalidGraph, NoReference
from bricolage.measure import closed_loop
from bricolage.measure.closed_loop import Serving
from bricolage.measure.sample_timing import TURN_MS, LoadedProgram, Sampler
from bricolage.measure.specs import PlannedCall
from bricolage.measure.worker_loop import Command, Commands, Tell
from bricolage.plan.plan import Plan
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_program, compile_step, region_model
from bricolage.runtime.executable import Executable
from bricolage.runtime.program import BoundProgram, Program
from bricolage.verify.named_arrays import load_values, save_tensors
from bricolage.verify.reference import Evaluator, Values, prepare_library
from bricolage.work.config_space import Choice
from bricolage.work.values import ModelValue

_MOST_TRIALS = 4
"""Regions whose trials stay ready, each with its weights in memory."""
_REASON_LENGTH = 500
_MOST_SWEPT = 64 << 20
"""Bytes that others read during a pause at most: more would take longer than the pause."""


class Worker:
    """The commands. Each returns the facts of its answer."""

    def __init__(self, device: Device) -> None:
        self._device = replace(device, name=device.kind)  # this process has no cores but those of a group
        self._loaded: dict[str, LoadedProgram] = {}
        self.sampler = Sampler()
        self._trials: dict[tuple[Step, int], Trials] = {}
        """Of regions, by what they were made for, the last used last."""
        self._evaluator: tuple[object, Callable[[dict[str, object]], Values]] | None = None
        """Of the reference, with what it was made for."""

        self._artifact: tuple[str, Executable] | None = None
        """The last one that was loaded, by its path."""

    def load(
        self,
        id: str,
        steps: list[object],
        inputs: str,
        outputs: list[str],
        threads: int,
        alone: bool,
        caching: bool,
        ephemeral: bool = True,
        cores: Sequence[list[int]] = (),
        serving: object = None,
        call: object = None,
        in_place: Mapping[str, str] | None = None,
    ) -> dict[str, object]:
        """Compiles a program of steps (encoded `Step`s) and binds it to the inputs in the .npz file; with `serving` (an encoded
        `Serving`), for several requests at a time; with `call` (an encoded `PlannedCall`), as the executable of that plan. `cores`
        are those of each step, where they run side by side; `in_place` names the inputs whose memory results take; for `caching`
        and `ephemeral` see `compile_step`."""
        program_steps = [decode(Step, step, "step") for step in steps]
        needed = _inputs_of(program_steps)
        resources = Resources(threads, self._device, alone)
        values = load_values(Path(inputs), needed)
        start = perf_counter()
        if serving is not None:
            how = decode(Serving, serving, "serving")
            arrays = {name: np.asarray(value) for name, value in values.items()}
            resources = Resources(threads, self._device)
            loop = closed_loop.load_streams(program_steps, needed, outputs, arrays, resources, how, caching=caching)
            self._loaded[id] = LoadedProgram(lambda: closed_loop.require_agreement(loop, how.bound), None, loop=loop)
            return {"compile_s": perf_counter() - start, "bind_s": 0.0, "bound": True}
        if call is not None:
            self._loaded[id] = _planned_call(decode(PlannedCall, call, "call"), values, outputs)
            return {"compile_s": perf_counter() - start, "bind_s": 0.0, "bound": True}
        program = compile_program(
            program_steps,
            needed,
            outputs,
            resources,
            caching=caching,
            ephemeral=ephemeral,
            cores=[tuple(core) for core in cores] or None,
        )
        compiled = perf_counter()
        if program_steps[0].implementation.config.as_it_comes:
            direct_call = _own_call(program, values)
            self._loaded[id] = LoadedProgram(
                direct_call, None, keep=(program, values), rerun=program.run, answer=partial(program.run, values)
            )
        elif program.static:
            buffers = {name: in_buffer(np.asarray(value)) for name, value in values.items()}
            bound = program.bind(buffers, {result: buffers[name] for result, name in (in_place or {}).items()})
            self._loaded[id] = LoadedProgram(bound, bound.outputs, keep=(program, bound), rerun=partial(_rerun, bound))
        else:
            self._loaded[id] = LoadedProgram(
                lambda: program.run(values), None, keep=(program, values), rerun=lambda other: program.run(other)
            )
        return {"compile_s": compiled - start, "bind_s": perf_counter() - compiled, "bound": program.static}

    def compile_ahead(self, steps: list[object], threads: int, alone: bool) -> dict[str, object]:
        """Compiles steps, so that the code lies in the cache when they are loaded."""
        for step in steps:
            compile_step(decode(Step, step, "step"), Resources(threads, self._device, alone))
        return {}

    def import_reference(self) -> dict[str, object]:
        """Imports what `evaluate` computes with."""
        prepare_library()
        return {}

    def compile(self, step: object, threads: int, device: object, folder: str) -> dict[str, object]:
        """Compiles a step for a device, which need not be this one, and keeps the code in an empty folder. Nothing is loaded for
        other devices."""
        decoded, target = decode(Step, step, "step"), decode(Device, device, "device")
        backend, region = registry.get(decoded.implementation.backend), RegionModel(decoded.path)
        config = decoded.implementation.config
        alike = target.fingerprint() == self._device.fingerprint()
        resources = Resources(threads, self._device if alike else target, cache=Path(folder)).of_team(config.team)
        if alike:
            backend.compile(region, config.of_all, resources)
        else:
            backend.build(region, config.of_all, resources)
        return {}

    def outputs(self, id: str, path: str, variations: Sequence[list[str]] = ()) -> dict[str, object]:
        """Runs once and writes the outputs to an .npz file. Bound buffers are spoilt first: an output that the program
        does not write must not look right because an earlier run left it there. `variations` are files of other inputs, and where
        the outputs for them go."""
        loaded = self._loaded[id]
        for buffer in (loaded.outputs or {}).values():
            buffer.fill(np.nan if buffer.dtype.kind == "f" else 0)
        start = perf_counter()
        fresh = loaded.call()
        first_ms = (perf_counter() - start) * 1e3
        if loaded.answer is not None:
            fresh = loaded.answer()
        results = loaded.outputs if loaded.outputs is not None else fresh
        assert isinstance(results, dict)
        save_tensors(Path(path), results)
        if loaded.rerun is not None:
            for given, answers in variations:
                try:
                    save_tensors(Path(answers), loaded.rerun(load_values(Path(given))))
                except Exception as error:  # what says that it cannot answer is not wrong
                    print(f"no answer to {given}: {error}", file=sys.stderr)
        return {"first_ms": first_ms}

    def time(self, id: str, turns: int, warm_s: float, turn_ms: float = TURN_MS, least: int = 1) -> dict[str, object]:
        """Times a program (`Sampler.time`)."""
        return self.sampler.time(self._loaded[id], turns, warm_s, turn_ms, least)

    def follow_course(self, id: str, seconds: float) -> dict[str, object]:
        """Says how a program's calls go, one after another (`Sampler.follow_course`)."""
        return self.sampler.follow_course(self._loaded[id], seconds)

    def time_after_pauses(self, id: str, calls: int, pause_s: float) -> dict[str, object]:
        """Times single calls of a program after pauses (`Sampler.time_after_pauses`)."""
        caches = sum(cache.bytes for cache in self._device.caches.levels)
        return self.sampler.time_after_pauses(self._loaded[id], calls, pause_s, min(caches, _MOST_SWEPT))

    def space(self, step: object, threads: int) -> dict[str, object]:
        """What a tuner may choose of the kernels of a step's region, and which other kernels it could have."""
        decoded = decode(Step, step, "step")
        backend, config = registry.get(decoded.implementation.backend), decoded.implementation.config
        given = RegionModel(decoded.path), config, Resources(threads, self._device, alone=True)
        return {"space": encode(backend.space(*given)), "structures": encode(list(backend.structures(*given)))}

    def trial(self, step: object, threads: int, builds: list[dict[str, object]], rounds: int) -> dict[str, object]:
        """Times choices for the kernels of a step's region, in turns with the usual ones; without any, what its tasks take as
        usual. What is prepared for a region serves for its next trials."""
        decoded = decode(Step, step, "step")
        trials = self._trials.pop((decoded, threads), None)
        if trials is None:
            while len(self._trials) >= _MOST_TRIALS:
                self._trials.pop(next(iter(self._trials)))
            backend, config = registry.get(decoded.implementation.backend), decoded.implementation.config
            trials = backend.trials(RegionModel(decoded.path), config, Resources(threads, self._device, alone=True))
        self._trials[decoded, threads] = trials
        if not builds:
            usual = dict(trials.usual(rounds))
            return {"usual": usual, "tasks_a_build": trials.tasks_a_build, "builds_at_once": trials.builds_at_once}
        asked = [{name: decode(Choice, choice, name) for name, choice in build.items()} for build in builds]
        return {
            "trials": [
                {name: encode(outcome) for name, outcome in answers.items()} for answers in trials.run(asked, rounds)
            ]
        }

    def attempt(self, backend: str, path: str) -> dict[str, object]:
        """Runs the conformance trials in a file on a backend; answers an outcome and a reason for each."""
        from bricolage.conformance.attempt import (
            attempt_together,
        )  # not every worker needs the reference implementation

        trials = pickle.loads(Path(path).read_bytes())  # written by the parent a moment ago
        results = attempt_together(registry.get(backend), trials, Resources(1, self._device))
        return {"results": [[result.outcome, result.reason] for result in results]}

    def evaluate(self, model: str, inputs: str, outputs: str, dtype: str, keep: list[str]) -> dict[str, object]:
        """The float64 reference of a model, or the same in its own types, on the inputs of an .npz file. What is prepared for a
        model serves for its next inputs."""
        import onnx_ir as ir

        what = (model, dtype, tuple(keep))
        try:
            if self._evaluator is None or self._evaluator[0] != what:
                self._evaluator = None
                evaluator = Evaluator(ir.load(model), dtype=np.dtype(dtype).type, keep=keep, borrowing=True)
                self._evaluator = (what, evaluator)
            values = self._evaluator[1](load_values(Path(inputs)))
            save_tensors(Path(outputs), values)
        except (NoReference, InvalidGraph) as error:
            return {"error": type(error).__name__, "because": str(error.facts["reason"])[:_REASON_LENGTH]}
        return {"borrowed": sorted(values.borrowed)}

    def run_artifact(self, path: str, inputs: str, outputs: str, run: bool) -> dict[str, object]:
        """Loads an artifact as `bricolage run` does, unless the last command did, and runs it once where it is to `run`. Answers
        who ran it, and why there are no outputs where it fails."""
        from bricolage.runtime.load import load  # not every worker loads artifacts

        if self._artifact is None or self._artifact[0] != path:
            self._artifact = None
            self._artifact = (path, load(path))
        if not run:
            return {"backends": [], "failure": ""}
        executable, values, backends = self._artifact[1], load_values(Path(inputs)), list[str]()
        try:
            backends += sorted(executable.backends(values))
            answer = executable(values)
        except Exception as error:  # what is at fault is known by now
            reason = error.sentence if isinstance(error, BricolageError) else f"{type(error).__name__}: {error}"
            return {"backends": backends, "failure": reason[:_REASON_LENGTH]}
        results = answer if len(executable.outputs) > 1 else (answer,)
        save_tensors(Path(outputs), {str(index): value for index, value in enumerate(results)})
        return {"backends": backends, "failure": ""}

    def step_times(self, plan: object, directory: str, inputs: str, runs: int) -> dict[str, object]:
        """Milliseconds of each region of a plan (encoded), in place: the medians of `runs` runs."""
        from bricolage.measure.in_place import step_ms  # not every worker runs plans

        return {"ms": step_ms(decode(Plan, plan, "plan"), Path(directory), load_values(Path(inputs)), runs)}

    def drop(self, ids: list[str]) -> dict[str, object]:
        """Frees programs."""
        for id in ids:
            self._loaded.pop(id, None)
        gc.collect()
        if not self._loaded:
            gc.freeze()  # what is left are frameworks, which every further collection would go through
        return {}

    def clear(self) -> dict[str, object]:
        """Frees all programs and what is kept of a reference or of trials."""
        self._evaluator = self._artifact = None
        self._trials.clear()
        return self.drop(list(self._loaded))


def commands(device: Device, _tell: Tell) -> Commands:
    """A worker's commands by name (`loop`)."""
    worker = Worker(device)
    between = (
        *(worker.load, worker.compile, worker.outputs, worker.space, worker.trial, worker.drop, worker.clear),
        *(worker.attempt, worker.evaluate, worker.run_artifact),
        *(worker.compile_ahead, worker.import_reference, worker.step_times),
    )

    def wrap_command(method: Command) -> Command:
        def run(**facts: object) -> Mapping[str, object]:
            worker.sampler.forget_time()
            return method(**facts)

        return run

    timing = (worker.time, worker.time_after_pauses, worker.follow_course)
    return {
        **{method.__name__: method for method in timing},
        **{method.__name__: wrap_command(method) for method in between},
    }


def _inputs_of(steps: list[Step]) -> list[str]:
    """Names of the tensors that a program reads from outside."""
    computed: set[str] = set()
    needed: dict[str, None] = {}
    for step in steps:
        region = region_model(step)
        for info in region.inputs:
            if info.name not in computed:
                needed.setdefault(info.name)
        computed.update(info.name for info in region.results)
    return list(needed)


def _planned_call(call: PlannedCall, values: Mapping[str, ModelValue], outputs: Sequence[str]) -> LoadedProgram:
    """The executable of a plan, called as a user calls it. `outputs`: how what is compared calls them, in order."""
    executable = Executable(call.plan, call.directory, lent=True)
    executable.prepare()

    def answer(given: Mapping[str, ModelValue]) -> dict[str, object]:
        results = executable(**given)
        return dict(zip(outputs, results if len(outputs) > 1 else (results,), strict=True))

    timed = partial(executable, **values)
    return LoadedProgram(timed, None, keep=(executable,), rerun=answer, answer=partial(answer, values))


def _own_call(program: Program, values: Mapping[str, object]) -> Callable[[], object]:
    """The call of a tool that reads the user's file, as its users make it."""
    (stage,) = program.stages
    return stage.kernel.own_call([values[info.name] for info in stage.inputs])


def _rerun(bound: BoundProgram, values: dict[str, object]) -> dict[str, object]:
    """Outputs for other inputs; the buffers hold afterwards what they held."""
    before = {name: buffer.copy() for name, buffer in bound.inputs.items()}
    try:
        for name, buffer in bound.inputs.items():
            np.copyto(buffer, np.asarray(values[name]))
        for buffer in bound.outputs.values():
            buffer.fill(np.nan if buffer.dtype.kind == "f" else 0)
        bound()
        return {name: buffer.copy() for name, buffer in bound.outputs.items()}
    finally:
        for name, buffer in bound.inputs.items():
            np.copyto(buffer, before[name])
