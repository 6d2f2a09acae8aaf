"""What the models of an architecture have in common, in whichever file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.frontends.decoders.decoder_description import Activation


@dataclass(frozen=True)
class Architecture:
    """What models of one architecture have in common."""

    biases: bool = False
    """Of queries, keys and values."""
    head_norms: bool = False
    """Of queries and keys."""
    post_norms: bool = False
    interleaved: bool = False
    """Whether a GGUF file has the two numbers that turn together side by side."""
    activation: Activation = "silu"
    scaled_embedding: bool = False
    """Whether rows of the embedding are multiplied by sqrt(width)."""
    pattern: int = 1
    """Every which layer sees all tokens; the others see a window."""
    base: float = 10_000.0
    """Of rotary frequencies, where a file names none."""
    norms_from_one: bool = False
    """Whether a folder of Hugging Face has the weights of norms less 1."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(interleaved=True),
    "qwen2": Architecture(biases=True),
    "qwen3": Architecture(head_norms=True),
    "gemma3": Architecture(
        head_norms=True,
        post_norms=True,
        activation="gelu_tanh",
        scaled_embedding=True,
        pattern=6,
        base=1_000_000.0,
        norms_from_one=True,
    ),
}
"""By GGUF's names."""
LOCAL_BASE = 10_000.0
"""Of the rotary frequencies of Gemma's layers with a window."""
LARGEST_HEAD = 1 << 16
"""Numbers of a head."""
