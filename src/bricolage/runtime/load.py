"""`load`: an artifact as an executable, on the machine it was planned for, or politely not."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.options import Precision, available_cores
from bricolage.device.host import host, select_device
from bricolage.errors import BadOption, ForeignArtifact, NoBackend, NotPack, NotWritable
from bricolage.plan import artifact
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant
from bricolage.plan.shipped_program import whole_region
from bricolage.runtime.choosing import PackChoice, choose_entry
from bricolage.runtime.executable import Executable
from bricolage.runtime.programs import first_implementation, ranked_baselines

_LOG = logging.getLogger(__name__)


def load(
    path: str | Path, *, any_machine: bool = False, target: str = "", precision: Precision | None = None
) -> Executable:
    """Reads an artifact, or a pack, and compiles its first shape bucket.

    With `any_machine`, an artifact from other hardware or other versions runs all the same: as planned where its backends are
    installed, else on the best single backend that is. The result is right, but its speed was never measured here.

    Of a pack the plan for this machine is taken, or that of `target`: the fastest of the tightest precision, or of any at least as
    tight as `precision`, that this machine can run as planned. What it is and why stands in the executable's `choice`, and is told.
    The plan of a pack also runs on machines that it was not measured on.

    The cache need not be writable: without it the artifact is unpacked among temporary files, and compiled each time.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact: the file is not usable.
        ForeignArtifact: it was planned for other hardware or versions, and `any_machine` is false.
        NoTarget: no plan of the pack runs here; NotPack: a target is named, and the artifact has one plan.
        NoBackend: nothing here can run it.
        UnsafeCache: the cache is not this user's alone.
        MissingDependency: it was not loaded here before, and bricolage was installed without what reads its graphs.
    """
    wanted = partial(_choose_from_pack, path=Path(path), target=target, precision=precision)
    try:
        return _load_executable(Path(path), any_machine, wanted, elsewhere=False)
    except (NotWritable, FileNotFoundError):  # the disk is full, or another process has just trimmed the cache
        return _load_executable(Path(path), any_machine, wanted, elsewhere=True)


def _choose_from_pack(directory: Path, path: Path, target: str, precision: Precision | None) -> PackChoice | None:
    """Which plan of a pack; None of an artifact with one plan."""
    pack = artifact.read_pack(directory)
    if pack is None:
        if target or precision is not None:
            raise NotPack(path=path, option="target" if target else "precision")
        return None
    choice = choose_entry(pack, host(), available_cores(), target=target, precision=precision)
    _LOG.info("%s: plan '%s', %s", path, choice.entry.target.name, choice.because)
    return choice


def _load_executable(
    path: Path, any_machine: bool, wanted: Callable[[Path], PackChoice | None], elsewhere: bool
) -> Executable:
    plan, directory = artifact.load_artifact(path, elsewhere=elsewhere)
    choice = wanted(directory)
    if choice is not None:
        plan = artifact.read_plan(directory / choice.entry.plan, path)
        any_machine = True
    difference = foreign(plan)
    if difference:
        if not any_machine:
            raise ForeignArtifact(path=path, difference=difference)
        _LOG.warning("%s was planned elsewhere (%s): right, but not tuned for this machine", path, difference)
        plan = _without_cores(plan)
        plan = dataclasses.replace(plan, buckets=tuple(_runnable(bucket, plan) for bucket in plan.buckets))
    executable = Executable(plan, directory)
    executable.choice = choice
    executable.prepare()
    return executable


def foreign(plan: Plan) -> str:
    """In words, how this machine differs from the plan's; empty when the plan holds here."""
    differences: list[str] = []
    options = plan.provenance.options
    try:
        here = select_device(options.isa, options.cores)
    except BadOption as error:
        return f"this machine has not the device that it was planned for ({error.sentence})"
    scheduled = {
        core
        for b in plan.buckets
        if b.program.schedule is not None
        for step_cores in b.program.schedule.cores
        for core in step_cores
    }
    if not scheduled <= set(here.cores):
        missing = ", ".join(map(str, sorted(scheduled - set(here.cores))[:8]))
        differences.append(f"its schedule is for cores that this process may not use ({missing})")
    point = plan.operating_point
    if point is not None and point.cores > min(len(here.cores), available_cores()):
        differences.append(
            f"its operating point is for {point.cores} cores, and this process may use {available_cores()}"
        )
    if here.fingerprint() != plan.provenance.fingerprint:
        differences.append(f"hardware is {here}, planned on {plan.provenance.hardware}")
    for name in dict.fromkeys(backend for bucket in plan.buckets for backend in bucket.program.backends):
        status = registry.find_status(name)
        if not isinstance(status, Available):
            differences.append(f"{name} is not installed")
        elif status.version != plan.provenance.versions.get(name):
            differences.append(f"{name} is {status.version}, planned with {plan.provenance.versions.get(name)}")
    return "; ".join(differences)


def _without_cores(plan: Plan) -> Plan:
    """The plan for the whole of this machine's processor, with no more threads than it has, and without schedules and an operating
    point, which hold for other cores."""
    options = plan.provenance.options
    here = dataclasses.replace(options, cores=None, threads=min(options.threads, available_cores()))
    buckets = tuple(bucket.with_schedule(None) for bucket in plan.buckets)
    provenance = dataclasses.replace(plan.provenance, options=here)
    return dataclasses.replace(plan, buckets=buckets, provenance=provenance, operating_point=None)


def _runnable(bucket: Bucket, plan: Plan) -> Bucket:
    """The bucket as planned if its backends are installed, else with one region on the best backend that is."""
    usable = {backend.name: backend for backend in registry.available()}
    if all(name in usable for name in bucket.program.backends):
        return bucket
    chosen = next(
        (baseline for baseline in ranked_baselines(bucket.race.contestants) if baseline.backend in usable), None
    )
    if chosen is None:
        chosen = next((first_implementation(b, plan) for b in usable.values() if b.dynamic), None)
    if chosen is None:
        raise NoBackend(why=" for this artifact")
    contestants, name = bucket.race.contestants, str(chosen)
    if all(contestant.name != name for contestant in contestants):
        unmeasured = "not measured: it was not there where the plan was made"
        contestants += (Contestant(name, "baseline", None, None, None, False, unmeasured, implementation=chosen),)
    race = dataclasses.replace(bucket.race, chosen=name, contestants=contestants)
    return dataclasses.replace(bucket, race=race).with_regions([whole_region(chosen, bucket.program.operators)])
