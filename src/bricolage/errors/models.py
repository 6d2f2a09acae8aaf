"""Of models."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bricolage.errors.base import UsageError, plain


class MissingFile(UsageError):
    what = "there is no file '{path}'"
    hint = "Check the path"


class NotAModel(UsageError):
    what = "'{path}' is not a readable ONNX model: {reason}"
    hint = "Export it again, or check that the download is complete"


class UnknownOperator(UsageError):
    what = "operator '{name}' has the unknown type {domain}::{op_type} in opset {opset}"
    hint = "Export the node as operators of the ONNX standard or of com.microsoft, or as a function of the model"


class UnsupportedOpset(UsageError):
    what = "the model uses opset {opset} of domain '{domain}'; bricolage reads {low} to {high}"
    hint = "Export it at one of these, or convert it with onnx.version_converter"


class OpsetOutOfReach(UsageError):
    what = "the model cannot be brought to opset {opset}: {reason}"
    hint = "Leave --opset out to keep the model's own, or export it at opset {opset}"


class InvalidGraph(UsageError):
    what = "the graph is invalid: {reason}"
    hint = "Export the model again, or correct what is named; `check-model FILE` of the onnx package checks a file by itself"


class StatedOtherwise(InvalidGraph):
    """A value has not the sizes that the model states, and that nothing but this statement says."""


class UnfitInputs(InvalidGraph):
    """Each input suits the model by itself, and together they do not."""

    what = "the inputs do not fit each other{sizes}: {reason}"
    hint = "Check the sizes of the inputs (--shape, --input); where no sizes fit, the model has to be exported again"


class TooLarge(UsageError):
    what = "{what} is too large to work with: {reason}"
    hint = "{advice}"


class BadExternalData(UsageError):
    what = "the description of tensor '{tensor}' in an external data file is wrong: {reason}"
    hint = "Export the model again; offset and length are numbers of bytes, not negative"


class MissingExternalData(UsageError):
    what = "tensor '{tensor}' lies in the external data file '{path}', which is missing or too short"
    hint = "Put the data file into the model's folder"


class ExternalDataOutside(UsageError):
    what = "tensor '{tensor}' refers to '{path}', outside the model's folder"
    hint = "For safety only data inside the model's folder is read; move the file there"


class UnboundDimension(UsageError):
    """All open dimensions without a size are asked for at once. `flags` are words of a command line, `python` a mapping."""

    what = "no size is given for what the model leaves open: {dimensions}"
    hint = "Give {flags}{why}, or in Python shapes={python}"
    longest_fact = 4000

    def on_command_line(self, words: Sequence[str]) -> tuple[str, str]:
        """The next step, and the command to paste for it. `words`: those of the command that was given."""
        why, flags = (plain(str(self.facts[name]), self.longest_fact) for name in ("why", "flags"))
        return f"Give sizes{why}", f"bricolage {shlex.join(words)} {flags}"


class UnboundRank(UsageError):
    what = "the number of dimensions of input '{input}' is not known"
    hint = "Give real inputs with --input, or export the model with a shape for it (its sizes may be open)"


class UnknownDimension(UsageError):
    what = "the model has no symbolic dimension '{dimension}'"
    hint = "It has: {known}"


class UnsupportedType(UsageError):
    what = "'{name}' has the type {type}, which {who} cannot handle"
    hint = "{advice}"


class BadTorchModel(UsageError):
    what = "the PyTorch model could not be exported: {reason}"
    hint = "Try torch.export.export(model, args) by hand; it shows the line of the model that cannot be exported"


class LeftToPyTorch(UsageError):
    what = "this graph is left to PyTorch's eager mode: {reason}"
    hint = "docs/manual/torch-compile.md lists the graphs that bricolage compiles"
