"""The report page of a language model: one self-contained file, in which everything of the model is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from bricolage._version import __version__
from bricolage.base.decoder_options import DecoderOptions
from bricolage.plan.decoder_plan import DecoderPlan, DecoderRace
from bricolage.plan.race_outcome import Contestant
from bricolage.report import words
from bricolage.report.charts import backend_class
from bricolage.report.decoder_sentences import COLUMNS, decoder_sentences
from bricolage.report.decoder_tables import first_token_ms, race_title, token_rate
from bricolage.report.pages import fill_template
from bricolage.report.palette import COLOURS, slots

_CLIP = 4.0
"""Bars end at this many times the fastest."""


def decoder_page(plan: DecoderPlan, command: str = "") -> str:
    """The page. `command` is what made it."""
    backends = [c.implementation.backend for each in plan.races for c in each.race.contestants if c.implementation]
    colours = slots(backends)
    chosen = {"prompt": str(plan.prompt), "step": str(plan.step)}
    verdict, *sentences = decoder_sentences(plan)
    return fill_template(
        "decoder.html.j2",
        {"ms": words.milliseconds, "ci": words.interval, "err": words.error, "bytes": words.size},
        plan=plan,
        verdict=verdict,
        sentences=sentences,
        races=[_describe_race(each, chosen[each.part], colours) for each in plan.races],
        columns=COLUMNS,
        bound=plan.races[0].bound,
        colours=COLOURS,
        size=sum(plan.files.values()),
        command=command,
        remake=remake_decoder(plan),
        version=__version__,
    )


def remake_decoder(plan: DecoderPlan) -> str:
    """The command that decides again."""
    default, wanted = DecoderOptions(), plan.decoder
    flags = ["--contexts", ",".join(map(str, wanted.contexts))] if wanted.contexts != default.contexts else []
    flags += [] if wanted.same_bits else ["--any-bits"]
    model = f"{plan.model}.gguf" if "model.gguf" in plan.files else plan.model
    return shlex.join(["bricolage", "optimize", model, *flags, *plan.provenance.options.flags()])


def _describe_race(each: DecoderRace, chosen: str, colours: Mapping[str, int]) -> dict[str, object]:
    """A race as its table shows it; bars are shares of the axis, percent."""
    timed = [c.median_ms for c in each.race.contestants if c.median_ms]
    axis = min(_CLIP * min(timed), max(timed)) if timed else 1.0
    return {
        "title": race_title(each),
        "reads": each.part == "prompt",
        "rows": [_describe_contestant(each, c, chosen, axis, colours) for c in each.race.contestants],
    }


def _describe_contestant(
    each: DecoderRace, contestant: Contestant, chosen: str, axis: float, colours: Mapping[str, int]
) -> dict[str, object]:
    ships, median = contestant.name == chosen, contestant.median_ms
    ratio, interval = contestant.over_other, contestant.over_other_ci
    over = words.MISSING if ratio is None else f"{ratio:.2f}×"
    if median is not None and contestant.name == each.race.best_other:
        over = "1.00×"
    return {
        "contestant": contestant,
        "ships": ships,
        "colour": backend_class(contestant, colours),
        "share": 0.0 if median is None else 100 * min(1.0, median / axis),
        "cut": median is not None and median > axis,
        "rate": f"{token_rate(each, contestant):.1f}" if median else words.MISSING,
        "first_token": words.milliseconds(first_token_ms(each, contestant)) if median else words.MISSING,
        "over": over,
        "over_title": ""
        if ratio is None or interval is None
        else f"{ratio:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]",
        "reason": contestant.reason or ("ships" if ships else ""),
    }
