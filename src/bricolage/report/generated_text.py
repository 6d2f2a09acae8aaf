"""Text that a language model has written, for people and for programs."""

from __future__ import annotations

from bricolage.language.language_model import GenerationFigures, GenerationStream


def generation_json(stream: GenerationStream, text: str, seed: int) -> dict[str, object]:
    """Of a text that is at its end."""
    figures = stream.figures
    result: dict[str, object] = {
        "text": text,
        "finish_reason": stream.finish_reason,
        "seed": seed,
        "prompt_tokens": figures.prompt_tokens,
        "tokens": [record.token for record in stream.records],
        "first_token_s": figures.first_token_s,
        "tokens_per_s": figures.tokens_per_s,
        "guessed_tokens": figures.guessed_tokens,
        "accepted_tokens": figures.accepted_tokens,
    }
    if any(record.logprob is not None for record in stream.records):
        result["logprobs"] = [_logprob_row(record.logprob, record.likeliest) for record in stream.records]
    return result


def _logprob_row(logprob: float | None, likeliest: tuple[tuple[int, float], ...]) -> dict[str, object]:
    return {"logprob": logprob, "likeliest": [{"token": token, "logprob": value} for token, value in likeliest]}


def generation_line(figures: GenerationFigures) -> str:
    """`31 tokens of prompt, 45 new ones; the first after 0.08 s, then 150.2 a second`."""
    words = [f"{figures.prompt_tokens} tokens of prompt, {figures.tokens} new ones"]
    if figures.first_token_s is not None:
        rate = "" if figures.tokens_per_s is None else f", then {figures.tokens_per_s:.1f} a second"
        words.append(f"the first after {figures.first_token_s:.2f} s{rate}")
    if figures.guessed_tokens:
        words.append(f"{figures.accepted_tokens} of {figures.guessed_tokens} guesses were right")
    return "; ".join(words)
