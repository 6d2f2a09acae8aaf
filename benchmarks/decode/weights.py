"""The GGUF file of the benchmark in another format, written by the package `gguf`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.real.packages import Unavailable
from bricolage.frontends.decoders.decoder_description import DecoderDescription, Matrix
from bricolage.graph.quantised_blocks import QuantisedBlocks


def bytes_of_a_token(decoder: DecoderDescription) -> int:
    """Of all matrices, with scales and zero points of 16 bits as in the file: what a token reads."""

    def size(matrix: Matrix) -> int:
        if not isinstance(matrix, QuantisedBlocks):
            return matrix.nbytes
        return matrix.packed.nbytes + 2 * matrix.scales.size * (1 if matrix.zeros is None else 2)

    return sum(size(matrix) for matrix in decoder.matrices())


def requantised(path: Path, to: Path, form: str = "q4_0") -> None:
    """The same file with its blocks of 4 bits as Q4_0, which is the faster format of llama.cpp, or as Q8_0.

    Raises:
        Unavailable: the package is missing.
    """
    if to.exists():
        return
    try:
        import gguf
    except ImportError as error:
        raise Unavailable(f"to write {form.upper()}: {error}") from error
    reader = gguf.GGUFReader(path)
    partial = to.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{form.upper()}"])
    small = gguf.GGMLQuantizationType[form.upper()]
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, small), raw_dtype=small)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(to)
