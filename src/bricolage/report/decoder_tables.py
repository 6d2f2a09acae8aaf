"""The decision about a language model, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from bricolage.base.codec import JsonObject, encode
from bricolage.plan.decoder_plan import DecoderPart, DecoderPlan, DecoderRace
from bricolage.plan.race_outcome import Contestant
from bricolage.report import words
from bricolage.report.decoder_sentences import COLUMNS, decoder_sentences, describe_load
from bricolage.report.tables import plain_table, plain_text

_HEADS = (
    ("Contestant", "fold"),
    ("Median", "right"),
    ("95 % interval", "right"),
    ("Tokens/s", "right"),
    ("Over tool", "right"),
    ("Error", "right"),
)
_FIRST_TOKEN = ("First token", "right")
"""Of prompts."""


def decoder_decision(plan: DecoderPlan) -> RenderableType:
    """Who runs what, then the race of each program."""
    parts: list[RenderableType] = [*map(plain_text, decoder_sentences(plan)), Text("")]
    parts += _race_parts(plan, {"prompt": str(plan.prompt), "step": str(plan.step)})
    return Group(*parts, plain_text(COLUMNS, "dim"), _footer(plan))


def decoder_race(plan: DecoderPlan, shipped: DecoderPlan | None) -> RenderableType:
    """The races alone, in which nothing ships. `shipped`: the decision in the artifact that was raced, which is marked."""
    marks: dict[DecoderPart, str] = (
        {} if shipped is None else {"prompt": str(shipped.prompt), "step": str(shipped.step)}
    )
    notes = [plain_text(COLUMNS, "dim")]
    if shipped is not None:
        notes.insert(0, plain_text(f"> the artifact: prompts run on {shipped.prompt}, steps on {shipped.step}"))
    load = [plain_text(line) for line in describe_load(plan)[:1]]
    return Group(*_race_parts(plan, marks), *notes, *load, _footer(plan))


def _race_parts(plan: DecoderPlan, marks: Mapping[DecoderPart, str]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for each in plan.races:
        parts += [_race_table(each, marks.get(each.part, "")), *_reasons(each), Text("")]
    return parts


def _footer(plan: DecoderPlan) -> RenderableType:
    options, origin = plan.provenance.options, plan.provenance
    threads = words.count(options.threads, "thread")
    about = f"{plan.model}: {options.precision}, {options.effort}, {threads}; {origin.hardware}; {origin.created}"
    return plain_text(about, "dim")


def _race_table(each: DecoderRace, marked: str) -> RenderableType:
    rows = [_row(each, contestant, marked) for contestant in each.race.contestants if contestant.median_ms is not None]
    heads = (*_HEADS[:4], _FIRST_TOKEN, *_HEADS[4:]) if each.part == "prompt" else _HEADS
    return plain_table(heads, rows, title=race_title(each))


def race_title(each: DecoderRace) -> str:
    """What a call of a race is."""
    return f"{each.part} at {each.context} tokens, {words.count(each.rows, 'token')} a call"


def token_rate(each: DecoderRace, contestant: Contestant) -> float:
    """Tokens a second; 0 where it was not timed."""
    return 1e3 * each.rows / contestant.median_ms if contestant.median_ms else 0.0


def first_token_ms(each: DecoderRace, contestant: Contestant) -> float:
    """From the beginning of a prompt to its first token, at most: its last chunk, which was timed, sees more than those before."""
    return (contestant.median_ms or 0.0) * -(-each.context // each.rows)


def _row(each: DecoderRace, contestant: Contestant, marked: str) -> list[str | Text]:
    ships = contestant.name == marked
    over = words.MISSING if contestant.over_other is None else f"{contestant.over_other:.2f}"
    first_token = [words.milliseconds(first_token_ms(each, contestant))] if each.part == "prompt" else []
    return [
        plain_text(("> " if ships else "  ") + contestant.name, "bold green" if ships else ""),
        words.milliseconds(contestant.median_ms),
        words.interval(contestant.ci_ms),
        f"{token_rate(each, contestant):.1f}",
        *first_token,
        over,
        words.error(contestant.error),
    ]


def _reasons(each: DecoderRace) -> list[RenderableType]:
    return [plain_text(f"  {c.name}: {c.reason}", "dim") for c in each.race.contestants if c.reason]


def decoder_json(plan: DecoderPlan) -> JsonObject:
    """The whole plan, as the artifact has it."""
    document: JsonObject = encode(plan)
    return document
