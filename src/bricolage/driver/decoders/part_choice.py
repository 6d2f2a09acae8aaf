"""Who reads prompts and who takes steps, by the races at all lengths."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bricolage.measure.race_record import Race
from bricolage.measure.statistics import Ratio, significant
from bricolage.plan.decoder_plan import DecoderPart
from bricolage.work.implementation import OWN_ENGINE, Implementation

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartChoice:
    """Of prompts, or of steps."""

    chosen: Implementation
    fastest: Implementation
    """Of all that are right: the same as the chosen one, unless bits decided."""
    ahead: Ratio | None
    """Speed-up of the fastest over the chosen one, where they differ: the geometric mean over lengths."""


def choose_part(
    races: Sequence[Race], implementations: Mapping[str, Implementation], keeping: Collection[str]
) -> PartChoice | None:
    """The fastest that is right at every length, and the fastest among those that may ship.

    The lowest geometric mean of medians leads. An implementation of our engine that is not surely slower by more than 2 % takes its
    place: it keeps the bits of a text, which is worth a tie.

    Args:
        races: of one part, one for each length.
        implementations: by the names of the contestants.
        keeping: names of those that may ship; where none of them is right, all may but the untouched file.

    Returns:
        None where none that may ship is right at every length.
    """
    arrived = [name for name in implementations if all(_median(race, name) is not None for race in races)]
    if not arrived:
        return None
    fastest = _lead(races, arrived, implementations)
    able = [name for name in arrived if name in keeping]
    able = able or [name for name in arrived if not implementations[name].config.as_it_comes]
    if not able:
        return None
    chosen = _lead(races, able, implementations)
    ahead = None if chosen == fastest else mean_ratio(races, fastest, chosen)
    return PartChoice(implementations[chosen], implementations[fastest], ahead)


def mean_ratio(races: Sequence[Race], challenger: str, incumbent: str) -> Ratio | None:
    """Speed-up over all lengths, the geometric mean; the interval is that of the bounds, which is conservative. None where they did
    not meet."""
    ratios = [ratio for race in races if (ratio := race.ratio(challenger, incumbent, through=race.incumbent))]
    if len(ratios) < len(races):
        return None
    value, low, high = (
        math.prod(getattr(ratio, name) for ratio in ratios) ** (1 / len(ratios)) for name in ("value", "low", "high")
    )
    return Ratio(value, low, high, min(ratio.rounds for ratio in ratios))


def settle_pair(
    prompt: PartChoice, step: PartChoice, races: Mapping[DecoderPart, Sequence[Race]], handover_ms: float
) -> PartChoice:
    """The prompt's choice once it pays for the cache that it hands over at each chunk: where that eats the gain, prompts stay with
    what takes the steps."""
    if prompt.chosen == step.chosen:
        return prompt
    name, other = str(prompt.chosen), str(step.chosen)
    for race in races["prompt"]:
        first, second = _median(race, name), _median(race, other)
        ratio = race.ratio(name, other, through=race.incumbent)
        if first is None or second is None or ratio is None:
            continue
        paid = first / (first + handover_ms)
        if not significant(Ratio(ratio.value * paid, ratio.low * paid, ratio.high * paid, ratio.rounds)):
            return PartChoice(step.chosen, prompt.fastest, mean_ratio(races["prompt"], str(prompt.fastest), other))
    return prompt


def warn_of_faster(choices: Mapping[str, PartChoice], *, same_bits: bool) -> None:
    """Says where what does not ship would have been faster: the untouched file, or what does not keep the bits of a text.

    Args:
        choices: by part.
        same_bits: whether only what keeps bits ships.
    """
    for part, choice in choices.items():
        if choice.ahead is None or choice.ahead.low <= 1.0:
            pass
        elif choice.fastest.config.as_it_comes:
            _LOG.warning(
                "the untouched file takes a %s in 1/%.2f of the time (%s); an artifact runs its weights, not the file",
                *(part, choice.ahead.value, choice.fastest),
            )
        elif same_bits:
            _LOG.warning(
                "%s takes a %s in 1/%.2f of the time, and gives a text other bits when its tokens come otherwise: "
                "--any-bits lets it ship",
                *(choice.fastest, part, choice.ahead.value),
            )
        if same_bits and choice.chosen.backend != OWN_ENGINE:
            _LOG.warning(
                "%s runs %ss: our engine does not, and a text may have other bits another time", choice.chosen, part
            )


def _lead(races: Sequence[Race], names: Sequence[str], implementations: Mapping[str, Implementation]) -> str:
    def mean(name: str) -> float:
        return math.prod(_median(race, name) or math.inf for race in races)

    first = min(names, key=lambda name: (mean(name), name))
    ours = sorted((name for name in names if implementations[name].backend == OWN_ENGINE), key=mean)
    for name in ours if implementations[first].backend != OWN_ENGINE else ():
        ratio = mean_ratio(races, first, name)
        if ratio is not None and not significant(ratio):
            return name
    return first


def _median(race: Race, name: str) -> float | None:
    cost = race.costs.get(name)
    return None if cost is None else cost.ms
