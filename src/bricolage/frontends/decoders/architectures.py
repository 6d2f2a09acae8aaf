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
    local_base: float | None = None
    """Of layers with a window, where a file names none; None where they turn as the others do."""
    window: int = 0
    """Tokens that a layer with a window sees, where a file names none; 0 for all."""
    attention_softcap: float = 0.0
    """Of scores, where a file names none; 0 for none. So is the next."""
    logit_softcap: float = 0.0
    norms_from_one: bool = False
    """Whether a folder of Hugging Face has the weights of norms less 1."""
    layers_scaled_by_width: int = 0
    """Layers of the one model that multiplies products of queries and keys by (width / heads)^-0.5. A GGUF file does not say it."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(interleaved=True),
    "qwen2": Architecture(biases=True),
    "qwen3": Architecture(head_norms=True),
    "gemma2": Architecture(
        post_norms=True,
        activation="gelu_tanh",
        scaled_embedding=True,
        pattern=2,
        window=4096,
        attention_softcap=50.0,
        logit_softcap=30.0,
        norms_from_one=True,
        layers_scaled_by_width=46,
    ),
    "gemma3": Architecture(
        head_norms=True,
        post_norms=True,
        activation="gelu_tanh",
        scaled_embedding=True,
        pattern=6,
        base=1_000_000.0,
        local_base=10_000.0,
        norms_from_one=True,
        layers_scaled_by_width=62,
    ),
}
"""By GGUF's names."""
LARGEST_HEAD = 1 << 16
"""Numbers of a head."""
