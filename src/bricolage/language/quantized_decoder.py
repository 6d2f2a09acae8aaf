"""A language model with weights of fewer bits, as a GGUF file that this and other tools read."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from bricolage.base.progress import Progress, Silent
from bricolage.base.quantization_options import QuantizationOptions
from bricolage.errors import (
    BadOption,
    NothingToQuantise,
    UnknownDecoderKind,
    UnknownOperatorName,
    UnusableText,
)
from bricolage.frontends.decoders.decoder_description import DecoderDescription, TokenizerDescription
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.gguf_contents import (
    copy_gguf_keys,
    find_difference,
    list_gguf_tensors,
    make_gguf_keys,
)
from bricolage.frontends.decoders.gguf_file import GgufFile
from bricolage.frontends.decoders.gguf_tokenizer import PRE_TOKENIZERS
from bricolage.frontends.decoders.gguf_writer import encode_value, write_gguf_file
from bricolage.frontends.decoders.tokenizer_json import list_json_merges
from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.language.held_out_text import compare_predictions, read_windows, reference_of
from bricolage.language.tokenizer import Tokenizer
from bricolage.quantization.decoder_weights import BlockPlan, list_matrix_names, round_decoder
from bricolage.quantization.gguf_grids import SIZE
from bricolage.quantization.outcome import QuantizationReport

_FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7}
"""GGUF's numbers of what most tensors of a file are."""
_QUANTIZATION_VERSION = 2
_MOST_WINDOWS = 32
"""Of calibration: more of them change little and take their time."""
_PROBE = (
    "It's 1234567 o'clock, WE'LL see\u2026  x_y=3.14;\n\n\t\tif (a != b) { return 0xFF; }\r\n "
    "\u4f60\u597d e\u0301 \u00e9 \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f642!!  "
)
"""A text that each of the known expressions cuts in another way."""


@dataclass(frozen=True)
class QuantizedDecoder:
    """A language model in blocks, and what rounding did to it."""

    decoder: DecoderDescription = field(repr=False)
    report: QuantizationReport
    source: Path
    file_type: int

    def save(self, path: str | Path) -> None:
        """Writes a GGUF file, there whole or not at all.

        Raises:
            NotWritable: the disk is full or the folder is not writable.
            UnknownDecoderKind: GGUF has no key for something of the model, by name.
        """
        if self.source.is_dir():
            tokenizer = _name_expressions(self.decoder, self.source)
            values, factors = make_gguf_keys(replace(self.decoder, tokenizer=tokenizer), self.source)
        else:
            values, factors = copy_gguf_keys(GgufFile(self.source))
        values["general.file_type"] = encode_value(self.file_type)
        values["general.quantization_version"] = encode_value(_QUANTIZATION_VERSION)
        write_gguf_file(Path(path), values, [*list_gguf_tensors(self.decoder), *factors])
        lost = find_difference(self.decoder, read_decoder(path))
        if lost is not None:
            Path(path).unlink()
            raise UnknownDecoderKind(
                path=self.source, kind="model with", name=lost, expected="what a GGUF file can say"
            )


def quantize_decoder(
    path: Path,
    options: QuantizationOptions,
    calibrate: Path | None = None,
    evaluate: Path | None = None,
    progress: Progress | None = None,
) -> QuantizedDecoder:
    """Rounds the matrices of a language model.

    Args:
        path: of a GGUF file or a folder of Hugging Face with weights in floats.
        options: `weights`, `block_format`, `block_method`, `keep_float` and `held_back` count; others are refused.
        calibrate: a text by which GPTQ rounds; None rounds by the weights alone.
        evaluate: a text that perplexity and KL are measured on; None holds back a share of `calibrate`.
        progress: is told about layers and windows.

    Raises:
        BadOption: an option that is for ONNX models.
        UnknownOperatorName: there is no tensor of a name in `keep_float`.
        NothingToQuantise: matrices are in blocks already, or none can be.
        UnusableText: a text is empty, too short, or none.
        MissingFile, NotALanguageModel, UnknownDecoderKind: as `read_decoder`.
    """
    decoder, shown = read_decoder(path), progress or Silent()
    plan = _choose_plan(options, calibrated=calibrate is not None)
    _check_names(decoder, plan)
    tokenizer = Tokenizer(decoder.tokenizer, path)
    seen, held = _divide_text(decoder, tokenizer, options, calibrate, evaluate)
    shown.start("round layers", len(decoder.layers))
    rounded, outcomes = round_decoder(
        decoder, plan, seen if options.block_method in (None, "gptq") else (), lambda _: shown.advance()
    )
    shown.finish()
    if not any(outcome.quantised for outcome in outcomes):
        raise NothingToQuantise(reason=outcomes[0].reason, advice="Leave out --keep-float")
    text = compare_predictions(held, reference_of(decoder), reference_of(rounded), shown) if held else None
    report = QuantizationReport(
        outcomes,
        None,
        typical_error=None,
        agreement=None,
        calibrated_on=len(seen),
        held_back=len(held),
        bytes=(_file_bytes(decoder), _file_bytes(rounded)),
        warnings=() if text is not None else ("no text: perplexity and KL were not measured",),
        text=text,
    )
    return QuantizedDecoder(rounded, report, path, _FILE_TYPES[plan.form])


_TAKEN = {"weights", "block_format", "block_method", "keep_float", "held_back", "errors_by_operator", "seed"}
"""Options that count for language models, or change nothing."""


def _choose_plan(options: QuantizationOptions, *, calibrated: bool) -> BlockPlan:
    """How matrices are rounded.

    Raises:
        BadOption: an option that is for ONNX models, or `weights` is missing.
    """
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name == "block_size" and value == SIZE:
            continue
        if option.name not in _TAKEN and value != option.default and option.metadata.get("flag"):
            advice = "It is for ONNX models: leave it out. Perplexity and KL are measured on --evaluate TEXT"
            raise BadOption(option=option.metadata["flag"], value=value, advice=advice)
    if options.weights is None:
        raise BadOption(option="--weights", value="none", advice="Write int4 or int8: activations stay float")
    form = options.block_format or ("q8_0" if options.weights == "int8" else "q4_1")
    if form not in ("q4_0", "q4_1", "q8_0") or (form == "q8_0") != (options.weights == "int8"):
        forms = "q8_0" if options.weights == "int8" else "q4_1 or q4_0"
        raise BadOption(option="--format", value=form, advice=f"Write {forms} for {options.weights} in a GGUF file")
    method = options.block_method
    if method in ("hqq", "awq") or (method == "gptq" and not calibrated):
        advice = "Of a language model: rtn, mse, or gptq with --calibrate TEXT"
        raise BadOption(option="--method", value=method, advice=advice)
    return BlockPlan(form, searched=method != "rtn", keep_float=frozenset(options.keep_float))


def _check_names(decoder: DecoderDescription, plan: BlockPlan) -> None:
    """Raises NothingToQuantise where a matrix is in blocks, UnknownOperatorName where a name is none."""
    names = list_matrix_names(decoder)
    for name, matrix in zip(names, decoder.matrices(), strict=True):
        if isinstance(matrix, QuantisedBlocks):
            reason = f"'{name}' is in blocks of {matrix.bits} bits already"
            raise NothingToQuantise(reason=reason, advice="Take the model's file with weights in F16, BF16 or F32")
    keepable = {*names, *names.values(), *(name.removesuffix(".weight") for name in names)}
    for name in sorted(plan.keep_float - keepable):
        raise UnknownOperatorName(name=name, known=", ".join([*dict.fromkeys(names.values()), list(names)[-1]]))


def _divide_text(
    decoder: DecoderDescription,
    tokenizer: Tokenizer,
    options: QuantizationOptions,
    calibrate: Path | None,
    evaluate: Path | None,
) -> tuple[list[list[int]], list[list[int]]]:
    """Windows that rounding sees, and windows that accuracy is measured on."""
    length = decoder.context_length
    held = [] if evaluate is None else read_windows(evaluate, tokenizer, length)
    if calibrate is None:
        return [], held
    seen = read_windows(calibrate, tokenizer, length)
    if evaluate is None:
        if len(seen) < 2:
            raise UnusableText(path=calibrate, reason="it has one window, and another one is to be held back")
        count = min(len(seen) - 1, max(1, round(options.held_back * len(seen))))
        seen, held = seen[:-count], seen[-count:]
    # Windows from the whole of a long text, rather than from its beginning.
    step = max(1, len(seen) // _MOST_WINDOWS)
    return seen[::step][:_MOST_WINDOWS], held


def _file_bytes(decoder: DecoderDescription) -> int:
    """Of all matrices in a file, where scales and minima are float16."""
    return sum(tensor.size for tensor in list_gguf_tensors(decoder) if len(tensor.shape) == 2)


def _name_expressions(decoder: DecoderDescription, path: Path) -> TokenizerDescription:
    """The tokenizer of a folder with what GGUF has in the place of tokenizer.json: merges, and the name of the expressions that
    cut a text, which are those that make the same tokens of a text.

    Raises:
        UnknownDecoderKind: none of the expressions that have a name does.
    """
    description = decoder.tokenizer
    if description.json is None or description.model != "gpt2":
        return description
    given = Tokenizer(description, path)
    merges = list_json_merges(description.json)
    framed = replace(description, json=None, merges=merges, add_begin=given.begin is not None)
    for name in PRE_TOKENIZERS:
        named = replace(framed, pre=name)
        if Tokenizer(named, path).encode(_PROBE) == given.encode(_PROBE):
            return named
    expected = f"those that GGUF has a name for: {', '.join(PRE_TOKENIZERS)}"
    raise UnknownDecoderKind(path=path, kind="tokenizer with", name="expressions of its own", expected=expected)
