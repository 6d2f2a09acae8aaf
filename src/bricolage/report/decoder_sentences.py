"""The decision about a language model in words, for tables and pages."""

from __future__ import annotations

from bricolage.plan.decoder_plan import DecoderPlan
from bricolage.report import words
from bricolage.work.implementation import OWN_ENGINE

COLUMNS = (
    "Tokens/s of a prompt are those of its last chunk. First token: behind a whole prompt, at most. Over tool: how many "
    "times as fast as the best other tool, the fastest of those that are not our engine, from paired rounds of the race. "
    "Error: of the logits, relative, against float64."
)
"""What the columns of a race's table mean."""


def decoder_sentences(plan: DecoderPlan) -> list[str]:
    """Who runs what, why, what of its bits holds, and what was checked."""
    lines = [f"prompts run on {plan.prompt}, steps on {plan.step}: {_reason(plan)}"]
    if plan.prompt != plan.step:
        lines.append(f"handing over the cache of a chunk takes {words.milliseconds(plan.handover_ms)}")
    if plan.same_bits:
        lines.append("a text has the same bits however its tokens come")
    else:
        lines.append("a text may have other bits when its tokens come in other chunks, or behind a kept prefix")
    lines += [*_list_faster(plan), *_list_absent(plan)]
    if plan.check is not None:
        check = plan.check
        lines.append(
            f"checked in a fresh process, {words.count(check.tokens, 'token')}: error {check.error:.1e} (bound {check.bound:.1e}), "
            f"KL {check.kl:.1e} nats (bound {check.kl_bound:.1e})"
        )
    return lines + describe_load(plan)


def describe_load(plan: DecoderPlan) -> list[str]:
    """What other processes did meanwhile, and that it is decided again; nothing where the machine was quiet."""
    if not plan.provisional:
        return []
    return [
        words.describe_disturbance(plan.races[0].race),
        "provisional, since it was made under load: the same command decides again once the machine is quiet; --replan does at "
        "once, and --provisional takes this decision as it is",
    ]


def _reason(plan: DecoderPlan) -> str:
    if plan.decoder.same_bits and {plan.prompt.backend, plan.step.backend} == {OWN_ENGINE}:
        return "the fastest over all lengths of those that keep a text's bits"
    return "the fastest over all lengths"


def _list_faster(plan: DecoderPlan) -> list[str]:
    """Where another tool was faster, and does not ship: it does not keep a text's bits, or is the untouched file."""
    lines = []
    for each in plan.races:
        other, winner = each.race.other, each.race.winner
        ratio, interval = winner.over_other, winner.over_other_ci
        if other is None or ratio is None or interval is None or interval[1] >= 1.0:
            continue
        faster = f"{1 / ratio:.2f} times as fast for the {each.part} at {each.context}"
        if other.as_it_comes:
            lines.append(f"your untouched file ({other.name}) is {faster}: an artifact runs its weights, not the file")
            continue
        if not plan.decoder.same_bits:
            continue
        lines.append(f"{other.name} is {faster}, and does not keep bits: --any-bits lets it ship")
    return lines


def _list_absent(plan: DecoderPlan) -> list[str]:
    """Backends that were there and did not race."""
    raced = {c.implementation.backend for each in plan.races for c in each.race.contestants if c.implementation}
    absent = [name for name in plan.provenance.versions if name not in raced]
    return [f"not raced: {', '.join(absent)}, which unpack weights in blocks"] if absent else []
