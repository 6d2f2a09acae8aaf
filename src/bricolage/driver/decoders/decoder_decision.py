"""Deciding who runs a language model: prompts and steps race at stated lengths, on the backends that keep its weights."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.base import scratch
from bricolage.base.decoder_options import DecoderOptions
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.costs.database import Database
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.driver.context import DecisionContext, check_again, open_context
from bricolage.driver.decoders.decoder_file import DecoderFile
from bricolage.driver.decoders.decoder_programs_raced import (
    DecoderTask,
    RacedPrograms,
    list_decoder_backends,
    list_decoder_tasks,
    list_file_loops,
)
from bricolage.driver.decoders.part_choice import PartChoice, choose_part, settle_pair, warn_of_faster
from bricolage.driver.decoders.stored_decision import (
    hash_decoder_question,
    recall_decoder_plan,
    store_decoder_plan,
)
from bricolage.driver.sources import working_folder
from bricolage.errors import BackendFailed, NoBackend, NotAccurate
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import model_within
from bricolage.frontends.decoders.decoder_memory import count_race_bytes, require_memory
from bricolage.frontends.decoders.decoder_program import PROMPT_ROWS
from bricolage.measure.log import MeasurementLog
from bricolage.measure.measurer import Measurer
from bricolage.measure.race import race
from bricolage.measure.race_record import Race
from bricolage.measure.specs import Limits, TimingPolicy
from bricolage.measure.time_taken import share_taken
from bricolage.measure.turns import make_turn, time_in_turns
from bricolage.plan.decoder_plan import DecoderPart, DecoderPlan, DecoderRace, digest_files, list_model_files
from bricolage.plan.disturbance_record import QUIET, Disturbance
from bricolage.plan.plan import Provenance
from bricolage.plan.race_outcome import Contestant, Quality, RaceOutcome
from bricolage.runtime.cache_rows import put_cache_rows, take_cache_rows
from bricolage.work.implementation import OWN_ENGINE, Implementation

_LOG = logging.getLogger(__name__)
_COPIES = 9


@dataclass(frozen=True)
class _Raced:
    task: DecoderTask
    bound: float
    race: Race


@dataclass(frozen=True)
class DecoderRequest:
    """What is decided on, and how."""

    source: Path
    """The model's file or folder, or an artifact of it."""
    options: Options
    """Precision, effort, threads, backends."""
    wanted: DecoderOptions
    """Lengths, and whether bits are kept."""
    replan: bool = False
    provisional: bool = False
    """These two are those of `optimize`."""
    original: DecoderFile | None = None
    """The untouched file, where it is one that tools run."""


def decide_decoder(decoder: DecoderDescription, request: DecoderRequest, progress: Progress) -> DecoderPlan:
    """Who runs a language model: the decision on record, or a new one, which is put on record. No artifact is written.

    A decision that other processes disturbed is made again once the machine is quiet.

    Args:
        decoder: what the request's source holds.
        request: lengths and options.
        progress: is told what happens.

    Raises:
        As `race_decoder`; BadOption: a decision on record is to be made again, and to be taken as it is.
    """
    check_again(request.replan, request.provisional)
    request = _within_context(decoder, request)
    options = request.options
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    versions = {backend.name: registry.version(backend.name) for backend in backends}
    within = model_within(request.source)
    digest = digest_files(list_model_files(within))
    key = hash_decoder_question(digest, options, request.wanted, versions, device.fingerprint())
    with Database() as database:
        stored = None if request.replan else recall_decoder_plan(database, key)
        if stored is not None and (request.provisional or not _goes_on(stored, device)):
            progress.start("the stored decision")
            progress.finish()
            return replace(stored, model=request.source.stem, files=_list_sizes(within))
    plan, complete = race_decoder(decoder, request, progress)
    if complete:
        with Database() as database:
            store_decoder_plan(database, plan)
    else:
        _LOG.warning("worker processes were ended from outside or by --memory-limit: the same command decides again")
    return plan


def _within_context(decoder: DecoderDescription, request: DecoderRequest) -> DecoderRequest:
    """With lengths that the model has."""
    longest = decoder.context_length - 1
    lengths = tuple(max(1, min(context, longest)) for context in request.wanted.contexts)
    return replace(request, wanted=replace(request.wanted, contexts=lengths))


def _goes_on(stored: DecoderPlan, device: Device) -> bool:
    """Whether a decision on record is made again: where other processes disturbed it, and do not now."""
    return stored.provisional and share_taken(device.cores) <= QUIET


def race_decoder(
    decoder: DecoderDescription, request: DecoderRequest, progress: Progress, database: Path | None = None
) -> tuple[DecoderPlan, bool]:
    """Races prompts and steps, and says who runs them. Nothing is put on record.

    Args:
        decoder: what the request's source holds.
        request: lengths and options.
        progress: is told what happens.
        database: of costs; the user's by default.

    Returns:
        The decision, and whether all contestants could do what they can: False where one was ended from outside.

    Raises:
        ModelBeyondMemory: a contestant would have no room for the weights; nothing has been loaded then.
        MissingBackend, UnknownBackend, NoBackend: there is none of those asked for, or none that runs a decoder.
        NotAccurate: none is right at the precision.
    """
    begun, options = time.monotonic(), request.options
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    entered = list_decoder_backends(backends, options, device)
    if not entered:
        names = ", ".join(backend.name for backend in backends)
        raise NoBackend(why=f" for a language model: {names} unpack weights in blocks")
    others, original = {each.backend for each in entered} - {OWN_ENGINE}, request.original
    if original is not None:
        entered += list_file_loops(backends)
    needed = count_race_bytes(decoder, others, 0 if original is None else original.nbytes)
    require_memory(needed, " where it is raced")
    request, folder = _within_context(decoder, request), working_folder()
    with (
        scratch.using(folder),
        open_context(options, backends, device, progress, database=database) as context,
    ):
        programs = RacedPrograms(decoder, folder, options.seed, request.original)
        hold = _Races(context, programs, folder, entered)
        raced = [hold.run(task) for task in list_decoder_tasks(request.wanted.contexts)]
    raced_s = time.monotonic() - begun
    plan = _make_plan(decoder, request.source, raced, entered, context, request.wanted, hold.disturbance)
    return replace(plan, seconds={"races": raced_s}), not hold.lost


class _Races:
    """The races of one decision."""

    def __init__(
        self, context: DecisionContext, programs: RacedPrograms, folder: Path, entered: Sequence[Implementation]
    ) -> None:
        self._context, self._entered, self._log = context, entered, MeasurementLog()
        self._programs = programs
        profile = context.options.profile
        self._measurer = Measurer(
            context.database,
            context.pool,
            folder,
            limits=Limits(compile_s=2 * profile.compile_limit_s),
            policy=TimingPolicy(profile.rounds, profile.most_rounds),
            cores=1,  # each compiles and holds a model of its own
            log=self._log,
        )

    @property
    def disturbance(self) -> Disturbance:
        """What other processes did meanwhile."""
        return self._log.tally.found

    @property
    def lost(self) -> bool:
        """Whether a worker was ended from outside."""
        return bool(self._log.lost)

    def run(self, task: DecoderTask) -> _Raced:
        """All contestants in one call, interleaved."""
        context, options = self._context, self._context.options
        profile = options.profile
        context.progress.start(f"{task}: the answer in float64")
        expected = self._programs.answer(task)
        specs, files = {}, {}
        for implementation in self._entered:
            name, asked = str(implementation), (task, implementation, options.threads, context.device)
            if not implementation.config.as_it_comes:
                specs[name], given = self._programs.contestant(*asked)
                files[name] = (given, expected)
                continue
            try:
                specs[name], *pair = self._programs.file_contestant(*asked)
            except BackendFailed as error:
                _LOG.warning("the untouched file is not raced as the %s: %s", task, error.sentence)
                continue
            files[name] = (pair[0], pair[1])
        context.progress.start(f"race: {task}", profile.race_rounds * len(specs))
        budget_s = profile.race_seconds if options.budget_s is None else options.budget_s / len(self._entered)
        ran = race(
            self._measurer,
            specs,
            *next(iter(files.values())),
            options.bound,
            rounds=profile.race_rounds,
            seconds=budget_s,
            progress=lambda name, _: context.progress.advance(1, name),
            processes=profile.race_processes,
            files=files,
        )
        context.progress.finish()
        for path in {path for pair in files.values() for path in pair}:
            path.unlink(missing_ok=True)
        return _Raced(task, options.bound, ran)


def _make_plan(
    decoder: DecoderDescription,
    source: Path,
    raced: Sequence[_Raced],
    entered: Sequence[Implementation],
    context: DecisionContext,
    wanted: DecoderOptions,
    disturbance: Disturbance,
) -> DecoderPlan:
    """What the races say.

    Raises:
        NotAccurate: none is right.
    """
    by_name = {str(implementation): implementation for implementation in entered}
    shipping = {name: each for name, each in by_name.items() if not each.config.as_it_comes}
    keeping = [name for name, each in shipping.items() if each.backend == OWN_ENGINE or not wanted.same_bits]
    races: dict[DecoderPart, list[Race]] = {"prompt": [], "step": []}
    for each in raced:
        races[each.task.part].append(each.race)
    prompt, step = (choose_part(races[part], by_name, keeping) for part in ("prompt", "step"))
    if prompt is None or step is None:
        raise _none_is_right(raced, context.options.bound)
    handover_ms = 0.0
    if prompt.chosen != step.chosen:
        handover_ms = measure_handover(decoder, PROMPT_ROWS[-1])
        prompt = settle_pair(prompt, step, races, handover_ms)
    choices = {"prompt": prompt, "step": step}
    warn_of_faster(choices, same_bits=wanted.same_bits)
    within = model_within(source)
    return DecoderPlan(
        model=source.stem,
        digest=digest_files(list_model_files(within)),
        files=_list_sizes(within),
        prompt=prompt.chosen,
        step=step.chosen,
        same_bits=prompt.chosen == step.chosen and step.chosen.backend == OWN_ENGINE,
        handover_ms=0.0 if prompt.chosen == step.chosen else handover_ms,
        decoder=wanted,
        races=tuple(_describe_race(each, choices[each.task.part], by_name, disturbance) for each in raced),
        provenance=_provenance(context.options, context.backends, context.device),
    )


def _list_sizes(model: Path) -> dict[str, int]:
    """Bytes of each file of a model, as they are called in an artifact."""
    files = list_model_files(model)
    return {"model.gguf" if len(files) == 1 else path.name: path.stat().st_size for path in files}


def _describe_race(
    each: _Raced, choice: PartChoice, by_name: Mapping[str, Implementation], disturbance: Disturbance
) -> DecoderRace:
    ran, chosen = each.race, str(choice.chosen)
    timed = {name: cost.ms for name, cost in ran.costs.items() if cost.ms is not None}
    best = min(timed, key=lambda name: (timed[name], name))
    other = min((name for name in timed if by_name[name].backend != OWN_ENGINE), key=timed.__getitem__, default="")
    table = [_describe_contestant(name, by_name[name], ran, best, other) for name in by_name]
    ratio = ran.ratio(chosen, best) if chosen != best else None
    outcome = RaceOutcome(
        chosen=chosen,
        contestants=tuple(sorted(table, key=lambda c: (c.median_ms is None, c.median_ms or 0.0, c.name))),
        best_baseline=best,
        speedup_vs_baseline=1.0 if ratio is None else ratio.value,
        speedup_ci=(1.0, 1.0) if ratio is None else (ratio.low, ratio.high),
        significant=False,
        quality=Quality(None, timed[chosen] / timed[best] - 1.0, timed[chosen] / min(timed.values()) - 1.0),
        disturbance=disturbance,
        best_other=other,
    )
    return DecoderRace(each.task.part, each.task.context, each.task.tokens, each.bound, outcome)


def _describe_contestant(name: str, implementation: Implementation, ran: Race, best: str, other: str) -> Contestant:
    cost = ran.costs.get(name)
    if cost is None:
        return Contestant(name, "baseline", None, None, None, False, "no time", implementation=implementation)
    latency = cost.latency
    over_best, over_other = (
        ran.ratio(name, against) if latency is not None and against and against != name else None
        for against in (best, other)
    )
    return Contestant(
        name=name,
        kind="baseline",
        median_ms=None if latency is None else latency.median_ms,
        ci_ms=None if latency is None else (latency.low_ms, latency.high_ms),
        error=cost.error,
        accepted=cost.outcome == "ok",
        reason="" if cost.outcome == "ok" else f"{cost.outcome}: {cost.reason}",
        compile_s=cost.compile_s,
        first_run_ms=ran.first_ms.get(name),
        implementation=implementation,
        speedup=None if over_best is None else over_best.value,
        speedup_ci=None if over_best is None else (over_best.low, over_best.high),
        over_other=None if over_other is None else over_other.value,
        over_other_ci=None if over_other is None else (over_other.low, over_other.high),
    )


def _none_is_right(raced: Sequence[_Raced], bound: float) -> Exception:
    """What is said where no contestant is right at every length."""
    costs = [cost for each in raced for cost in each.race.costs.values()]
    wrong = [cost.error for cost in costs if cost.outcome == "wrong" and cost.error is not None]
    if wrong:
        return NotAccurate(error=min(wrong), bound=bound)
    reasons = "; ".join(
        dict.fromkeys(
            f"{name}: {cost.reason}" for each in raced for name, cost in each.race.costs.items() if cost.reason
        )
    )
    return NoBackend(why=f" for this language model: {reasons[:600]}")


def measure_handover(decoder: DecoderDescription, rows: int) -> float:
    """Milliseconds, the median, that it takes to hand the keys and values of `rows` tokens from one layout to the other."""
    shape = (1, decoder.key_heads, rows, decoder.head_size)
    count = 2 * len(decoder.layers)
    apart = [np.ones(shape, np.float32) for _ in range(count)]
    pools = [np.ones((rows, decoder.key_heads * decoder.head_size), np.float16) for _ in range(count)]

    def hand_over() -> None:
        for cache, pool in zip(apart, pools, strict=True):
            pool[...] = take_cache_rows(cache, 0, rows)

    def hand_back() -> None:
        for cache, pool in zip(apart, pools, strict=True):
            put_cache_rows(cache, 0, pool)

    ways: Mapping[str, Callable[[], object]] = {"over": hand_over, "back": hand_back}
    turns = time_in_turns({name: make_turn(way, warming=1) for name, way in ways.items()}, _COPIES)
    return max(turns.latency(name).median_ms for name in ways)


def _provenance(options: Options, backends: Sequence[Backend], device: Device) -> Provenance:
    return Provenance(
        bricolage=__version__,
        versions={backend.name: registry.version(backend.name) for backend in backends},
        fingerprint=device.fingerprint(),
        hardware=str(device),
        options=options,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
