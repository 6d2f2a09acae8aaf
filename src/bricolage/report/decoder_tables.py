"""The decision about a language model, for people and for programs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from bricolage.base.codec import JsonObject, encode
from bricolage.plan.decoder_plan import DecoderPlan, DecoderRace
from bricolage.plan.race_outcome import Contestant
from bricolage.report import words
from bricolage.report.tables import plain_table, plain_text

_HEADS = (
    ("Contestant", "left"),
    ("Median", "right"),
    ("95 % interval", "right"),
    ("Tokens/s", "right"),
    ("Over tool", "right"),
    ("Error", "right"),
)


def decoder_decision(plan: DecoderPlan) -> RenderableType:
    """Who runs what, then the race of each program."""
    parts: list[RenderableType] = [*map(plain_text, decoder_sentences(plan)), Text("")]
    for each in plan.races:
        parts += [_race_table(each), *_reasons(each), Text("")]
    options, origin = plan.provenance.options, plan.provenance
    threads = words.count(options.threads, "thread")
    parts.append(
        plain_text(f"{plan.model}: {options.precision}, {options.effort}, {threads}; {origin.hardware}", "dim")
    )
    return Group(*parts)


def decoder_sentences(plan: DecoderPlan) -> list[str]:
    """The decision in words."""
    lines = [f"prompts run on {plan.prompt}, steps on {plan.step}"]
    if plan.prompt != plan.step:
        lines[0] += f"; handing over the cache of a chunk takes {words.milliseconds(plan.handover_ms)}"
    if plan.same_bits:
        lines.append("a text has the same bits however its tokens come")
    else:
        lines.append("a text may have other bits when its tokens come in other chunks, or behind a kept prefix")
    lines += _left_behind(plan)
    if plan.check is not None:
        check = plan.check
        lines.append(
            f"checked in a fresh process, {words.count(check.tokens, 'token')}: error {check.error:.1e} (bound {check.bound:.1e}), "
            f"KL {check.kl:.1e} nats (bound {check.kl_bound:.1e})"
        )
    return lines


def _left_behind(plan: DecoderPlan) -> list[str]:
    """Where another tool was faster, and does not ship because of a text's bits."""
    lines = []
    for each in plan.races:
        other = each.race.other
        ratio, interval = each.race.winner.over_other, each.race.winner.over_other_ci
        if (
            plan.decoder.same_bits
            and other is not None
            and ratio is not None
            and interval is not None
            and interval[1] < 1.0
        ):
            lines.append(
                f"{other.name} is {1 / ratio:.2f} times as fast for the {each.part} at {each.context}, and does not keep bits: "
                "--any-bits lets it ship"
            )
    return lines


def _race_table(each: DecoderRace) -> RenderableType:
    rows = [_row(each, contestant) for contestant in each.race.contestants if contestant.median_ms is not None]
    title = f"{each.part} at {each.context} tokens, {words.count(each.rows, 'token')} a call"
    return plain_table(_HEADS, rows, title=title)


def _row(each: DecoderRace, contestant: Contestant) -> list[str | Text]:
    ships = contestant.name == each.race.chosen
    rate = 1e3 * each.rows / contestant.median_ms if contestant.median_ms else 0.0
    over = words.MISSING if contestant.over_other is None else f"{contestant.over_other:.2f}"
    return [
        plain_text(("> " if ships else "  ") + contestant.name, "bold green" if ships else ""),
        words.milliseconds(contestant.median_ms),
        words.interval(contestant.ci_ms),
        f"{rate:.1f}",
        over,
        words.error(contestant.error),
    ]


def _reasons(each: DecoderRace) -> list[RenderableType]:
    return [plain_text(f"  {c.name}: {c.reason}", "dim") for c in each.race.contestants if c.reason]


def decoder_json(plan: DecoderPlan) -> JsonObject:
    """The whole plan, as the artifact has it."""
    document: JsonObject = encode(plan)
    return document
