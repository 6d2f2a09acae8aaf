"""A tokenizer from the keys of a GGUF file."""

from __future__ import annotations

import numpy as np

from bricolage.errors import NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.decoder_description import CONTROL, USER_DEFINED, TokenizerDescription
from bricolage.frontends.decoders.named_values import NamedValues

_LONGEST_TOKEN = 4096
"""Letters: a piece is split everywhere to see what it is merged from."""
PRE_TOKENIZERS = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm")
"""Names of expressions that are known, for tokenizers of the model gpt2."""


def read_gguf_tokenizer(keys: NamedValues) -> TokenizerDescription:
    """The tokenizer of a file.

    Raises:
        NotALanguageModel: keys are missing or of other types.
        UnknownDecoderKind: the model or its expressions (`.pre`) are not known: a guess would answer fluently and worse.
    """
    prefix = "tokenizer.ggml"
    model, pre = keys.text(f"{prefix}.model"), keys.text(f"{prefix}.pre", "default")
    if model not in ("gpt2", "llama"):
        raise UnknownDecoderKind(path=keys.path, kind="tokenizer", name=model, expected="gpt2, llama")
    if model == "gpt2" and pre not in PRE_TOKENIZERS:
        raise UnknownDecoderKind(path=keys.path, kind="tokenizer's 'pre'", name=pre, expected=", ".join(PRE_TOKENIZERS))
    begin, end = (keys.optional_integer(f"{prefix}.{name}_token_id") for name in ("bos", "eos"))
    tokens, types = keys.texts(f"{prefix}.tokens"), keys.array(f"{prefix}.token_type", np.int32)
    if not tokens:
        raise NotALanguageModel(path=keys.path, reason="its tokenizer has no tokens")
    longest = max(map(len, tokens))
    if longest > _LONGEST_TOKEN:
        raise NotALanguageModel(path=keys.path, reason=f"a token of its tokenizer has {longest} letters")
    scores = keys.array(f"{prefix}.scores", np.float32)
    if model == "llama" and scores is None:
        raise NotALanguageModel(path=keys.path, reason=f"it lacks the key '{prefix}.scores'")
    turns = keys.optional_integer(f"{prefix}.eot_token_id"), keys.optional_integer(f"{prefix}.eom_token_id")
    ends = {token for token in (end, *turns) if token is not None}
    ends |= _ends_of_turns(tokens, types)
    template = keys.text("tokenizer.chat_template", "")
    return TokenizerDescription(
        model="gpt2" if model == "gpt2" else "llama",
        pre=pre,
        tokens=tokens,
        merges=keys.texts(f"{prefix}.merges"),
        scores=scores,
        types=types,
        begin=begin,
        end=end,
        unknown=keys.optional_integer(f"{prefix}.unknown_token_id"),
        padding=keys.optional_integer(f"{prefix}.padding_token_id"),
        ends=frozenset(ends),
        add_begin=keys.flag(f"{prefix}.add_bos_token", model == "llama" or pre == "llama-bpe"),
        add_end=keys.flag(f"{prefix}.add_eos_token", False),
        add_space_prefix=keys.flag(f"{prefix}.add_space_prefix", model == "llama"),
        chat_template=template or None,
    )


_TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"})


def _ends_of_turns(tokens: tuple[str, ...], types: np.ndarray | None) -> set[int]:
    """Tokens that end a turn by their names, which a file need not say by a key of its own."""
    return {
        number
        for number, token in enumerate(tokens)
        if token in _TURN_ENDS and (types is None or (number < len(types) and types[number] in (CONTROL, USER_DEFINED)))
    }
