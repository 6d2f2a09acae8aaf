"""How accurate a language model is on a text, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict

from bricolage.base.codec import JsonObject
from bricolage.report import words
from bricolage.verify.text_accuracy import TextAccuracy


def text_sentences(accuracy: TextAccuracy) -> list[str]:
    """Perplexity, then how far the probabilities are from the reference's."""
    text = f"{words.count(accuracy.windows, 'window')} of {accuracy.window} tokens"
    return [
        f"perplexity {accuracy.perplexity:.3f} ± {accuracy.perplexity_error:.3f} on {text}; "
        f"the reference in float32 {accuracy.reference_perplexity:.3f}",
        f"KL from the reference {accuracy.kl:.2e} nats, {accuracy.largest_kl:.2e} in the worst window; "
        f"the same likeliest token in {accuracy.agreement:.2%}",
    ]


def accuracy_json(accuracy: TextAccuracy) -> JsonObject:
    """The same as data."""
    return asdict(accuracy)
