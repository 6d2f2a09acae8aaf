"""Networks of `transformers`, built from their configurations without trained weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.unseen.libraries import library


class Named(nn.Module):
    """A module with keyword arguments, called with the arrays in the order of `given`; `found` of its answer by name."""

    def __init__(self, module: Any, given: tuple[str, ...], found: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.given, self.found = module, given, found

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        answer = self.module(**dict(zip(self.given, arrays, strict=True)))
        return tuple(getattr(answer, name) for name in self.found)


def _configured(kind: str, model: str, **options: Any) -> Any:
    """A model of `transformers` with this configuration."""
    transformers = library("transformers")
    return getattr(transformers, model)(getattr(transformers, kind)(**options))


def text_encoder(kind: str, model: str, **options: Any) -> Any:
    """Token numbers and mask to hidden states."""
    return Named(_configured(kind, model, **options), ("input_ids", "attention_mask"), ("last_hidden_state",))


def sound_classifier() -> Any:
    """AST of the size of DeiT-tiny, for four seconds: (1, frames, mels) to 527 classes."""
    size = {
        "hidden_size": 192,
        "num_attention_heads": 3,
        "intermediate_size": 768,
        "max_length": 400,
        "num_labels": 527,
    }
    return Named(_configured("ASTConfig", "ASTForAudioClassification", **size), ("input_values",), ("logits",))


def vocoder() -> Any:
    """HiFi-GAN, version 2 (128 channels): (frames, mels) to samples."""
    return _configured("SpeechT5HifiGanConfig", "SpeechT5HifiGan", upsample_initial_channel=128)


def token_detector(side: int) -> Any:
    """YOLOS of the size of DeiT-tiny."""
    size = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "image_size": [side, side]}
    model = _configured("YolosConfig", "YolosForObjectDetection", **size, use_mid_position_embeddings=False)
    return Named(model, ("pixel_values",), ("logits", "pred_boxes"))


def query_detector(kind: str, **options: Any) -> Any:
    """A relative of DETR of this kind on a trunk of 18 layers, whose queries are learnt: none is chosen by its score, which would
    make another answer of a rounding error."""
    transformers = library("transformers")
    sizes = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
    trunk = transformers.ResNetConfig(**sizes, out_features=options.pop("out_features"))
    attention = {
        "encoder_layers": 3,
        "decoder_layers": 3,
        "encoder_ffn_dim": 1024,
        "decoder_ffn_dim": 1024,
        "num_queries": 100,
    }
    model = _configured(f"{kind}Config", f"{kind}ForObjectDetection", backbone_config=trunk, **attention, **options)
    return Named(model, ("pixel_values",), ("logits", "pred_boxes"))
