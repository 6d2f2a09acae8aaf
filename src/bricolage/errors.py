"""The catalogue of everything that can go wrong.

An error is a class with two templates: `what` (what happened, and where) and `hint` (what to do next). Raising it fills
in the facts: `raise MissingFile(path="x.onnx")`. The command line prints the sentence and exits with `exit_code`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import ClassVar

OK = 0
INTERNAL = 1
USAGE = 2
NO_GAIN = 3
INACCURATE = 4
NO_BACKEND = 5
_QUOTED = frozenset({"reason", "reasons"})
"""Facts in which messages of other packages may stand."""
_LONGEST_FACT = 600
"""Letters of one fact in a sentence. What is longer (names may have thousands) is cut."""


def plain(text: str, longest: int | None = None) -> str:
    """Text of a model's or an artifact's as a terminal may show it: what is not printable (escape sequences, line breaks, marks
    that turn the direction of writing) becomes its code, and what is longer than `longest` letters is cut."""
    if longest is not None and len(text) > longest:
        text = f"{text[: longest - 30]}... ({len(text)} letters)"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_REFERRAL = re.compile(
    r"contribut|creat\w* an? (PR|pull request)|pull request|(file|open|submit|raise|create) an? (new )?(issue|bug|ticket)|"
    r"report (this|it|the|a) |please report|bug report|/issues\b|contact the (maintainers|developers)",
    re.IGNORECASE,
)


def without_referrals(text: str) -> str:
    """What another package says went wrong, without the sentences that send the reader to its makers: the model is what he can
    change here. A text of nothing else stays."""
    sentences = re.split(r"(?<=[.!?])\s+|\n+", text)
    kept = [sentence for sentence in sentences if not _REFERRAL.search(sentence)]
    return text if len(kept) == len(sentences) else " ".join(kept).rstrip(".") or text


def _shown(fact: object, longest: int) -> object:
    """A fact as it stands in a sentence. Numbers stay what they are: templates format them."""
    return fact if isinstance(fact, int | float) else plain(str(fact), longest)


class BricolageError(Exception):
    """Base of the catalogue. `facts` fill the templates, fit for a terminal, and stay as they are on the exception."""

    what: ClassVar[str] = "{message}"
    hint: ClassVar[str] = ""
    exit_code: ClassVar[int] = INTERNAL
    longest_fact: ClassVar[int] = _LONGEST_FACT

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        shown = {name: _shown(fact, self.longest_fact) for name, fact in facts.items()}
        for name in _QUOTED & shown.keys():
            shown[name] = without_referrals(str(shown[name]))
        self.sentence = self.what.format(**shown)
        self.next_step = self.hint.format(**shown)
        super().__init__(f"{self.sentence}. {self.next_step}".strip() if self.next_step else self.sentence)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.facts)


def _rebuild(kind: type[BricolageError], facts: dict[str, object]) -> BricolageError:
    return kind(**facts)


class UsageError(BricolageError):
    """The user gave something that cannot be worked with; nothing was written."""

    exit_code = USAGE


# --- models -----------------------------------------------------------------------------------------------------


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
    hint = "Export the model again, or mend what is named; `check-model FILE` of the onnx package looks at a file by itself"


class TooLarge(UsageError):
    what = "{what} is too large to work with: {reason}"
    hint = "{advice}"


class BadExternalData(UsageError):
    what = "the external data of tensor '{tensor}' are described wrongly: {reason}"
    hint = "Export the model again; offset and length are numbers of bytes, not negative"


class MissingExternalData(UsageError):
    what = "tensor '{tensor}' lies in the external data file '{path}', which is missing or too short"
    hint = "Put the data file beside the model"


class ExternalDataOutside(UsageError):
    what = "tensor '{tensor}' refers to '{path}', outside the model's folder"
    hint = "For safety only data inside the model's folder is read; move the file beside the model"


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
    hint = "Try torch.export.export(model, args) by hand; it shows the line of the model that stands in the way"


class LeftToPyTorch(UsageError):
    what = "PyTorch's eager runs this graph: {reason}"
    hint = "docs/torch-compile.md says what bricolage takes"


# --- values at run time -----------------------------------------------------------------------------------------


class MissingInput(UsageError):
    what = "input '{name}' is missing"
    hint = "The model takes: {expected}"


class UnknownInput(UsageError):
    what = "the model has no input '{name}'"
    hint = "It takes: {expected}"


class WrongType(UsageError):
    what = "input '{name}' has the type {actual}; the model takes {expected}"
    hint = "Convert it, for example x.astype('{expected}')"


class WrongShape(UsageError):
    what = "input '{name}' has the shape {actual}; the model takes {expected}"
    hint = "Check the order of dimensions and the batch dimension"


class QueueFull(UsageError):
    what = "the queue of requests is full: {waiting} wait"
    hint = "Submit more slowly, wait longer (timeout), or give the operating point a longer queue"


class ExecutableClosed(UsageError):
    what = "the executable of '{model}' is closed and takes no more requests"
    hint = "Load its artifact again"


class NotBatchable(UsageError):
    what = "requests to '{model}' cannot be put together: {reason}"
    hint = "Use batch=1, or a model with a symbolic batch dimension whose rows do not depend on each other"


# --- options ----------------------------------------------------------------------------------------------------


class BadOption(UsageError):
    what = "{option} cannot be '{value}'"
    hint = "{advice}"


class UnknownBackend(UsageError):
    what = "there is no backend '{name}'"
    hint = "Known backends: {known}"


class UnknownPrecision(UsageError):
    what = "there is no precision '{name}'"
    hint = "Use one of: highest, high, medium"


class NotWritable(UsageError):
    what = "'{path}' cannot be written: {reason}"
    hint = "Free some space or choose another path (for the cache --cache or $BRICOLAGE_CACHE); nothing was left half-written"


class CacheNotWritable(NotWritable):
    what = "the cache folder '{path}' cannot be written: {reason}"
    hint = "Name another folder with BRICOLAGE_CACHE or --cache, or free some space"


class UnsafeCache(UsageError):
    """Code is loaded from the cache, so whoever may write there could run code as this user."""

    what = "the cache folder '{path}' is not this user's alone: {reason}"
    hint = "Name another folder with BRICOLAGE_CACHE or --cache, or delete it or make it your own: chown and chmod 700"


class NewerCosts(UsageError):
    what = (
        "the cost database {place} was made by a later bricolage (its tables are of version {found}, known are {known})"
    )
    hint = "Update bricolage, or name another cache folder (BRICOLAGE_CACHE) or database (BRICOLAGE_COSTS)"


class UnreachableCosts(UsageError):
    what = "the cost database {place} cannot be used: {reason}"
    hint = "Start it or correct BRICOLAGE_COSTS; without that variable costs are kept in the cache folder"


class UnreachableCluster(UsageError):
    what = "the Ray cluster '{address}' cannot be used: {reason}"
    hint = "Start it (ray start --head), give its address (auto, HOST:6379), or --ray local for processes of this machine alone"


class NoMeasuringNode(UsageError):
    """Costs hold for a device class, so that others can only compile."""

    what = (
        "no node of the Ray cluster '{address}' is a machine like this one ({device}) with the same versions: {reasons}"
    )
    hint = "Add such a node, install the same versions there, or leave --ray out"


class MissingLibrary(UsageError):
    what = "{name} is needed {purpose}, and cannot be imported ({reason})"
    hint = "Install it: pip install 'bricolage[{extra}]'"


class TooFewCosts(UsageError):
    what = "there are {found} measurements to learn from, and at least {needed} are needed"
    hint = "Optimise some models first, or import what others measured: bricolage costs import FILE"


class BadCostModel(UsageError):
    what = "'{path}' is no model of costs: {reason}"
    hint = "Make one with `bricolage costs train`"


# --- training ---------------------------------------------------------------------------------------------------


class BadTrainingSpec(UsageError):
    what = "'{path}' does not describe training: {reason}"
    hint = "Write it as docs/training.md shows"


class BadTrainingCode(UsageError):
    """Python that a spec names, or what it returns."""

    what = "'{place}' cannot be trained with: {reason}"
    hint = "docs/training.md says what a spec's functions take and return"


class NotFusible(UsageError):
    """Lanes of a sweep that cannot be trained as one. A sweep trains them one by one and says why."""

    what = "these lanes cannot be trained as one: {reason}"
    hint = "They can be trained one by one: `bricolage train fuse --how serial`; docs/training-fused.md says what fuses"


class NotTraceable(UsageError):
    """A training step whose operators rest on the values of tensors."""

    what = "this training step cannot be predicted: {reason}"
    hint = "Predict a step without control flow on values; docs/training-predict.md says what can be followed"


class BadVariant(UsageError):
    """A change of a training step that cannot be made."""

    what = "'{variant}' is no change of this training step: {reason}"
    hint = "docs/training-predict.md lists the changes: batch=64, amp, fused, recompute, micro=4, freeze=NAME, workers=2 and so on"


class BadTrainingLog(UsageError):
    what = "'{path}' is no record of a training run: {reason}"
    hint = "Write a line for each step: its number, a comma, the loss; or for each run: workers, servers, batch, steps a second"


class TrainingWorkerFailed(BricolageError):
    what = "a process that takes part in training failed: {reason}"
    hint = (
        "See whether the training step runs by itself and memory suffices; `train fuse --how serial` needs no processes"
    )


# --- artifacts --------------------------------------------------------------------------------------------------


class BadArtifact(UsageError):
    what = "'{path}' is not a usable bricolage artifact: {reason}"
    hint = "Make it again with `bricolage optimize`"


class UnreadableArtifact(BricolageError):
    """Somebody is about to write what nobody could read."""

    what = "the artifact '{path}' would not be usable: {reason}"
    hint = "Nothing was written. This is a fault of bricolage: report it with the model"


class ArtifactFails(BricolageError):
    """An artifact that was written does not do in a fresh process what was measured of it."""

    what = "the artifact fails in a fresh process {where}: {reason}"
    hint = "Nothing was written. Leave out the backend at fault by naming others (--backend onnxruntime), and report the model"


class NewerArtifact(UsageError):
    what = "'{path}' has the artifact format {found}; this bricolage reads up to {known}"
    hint = "Upgrade bricolage, or make the artifact again with this version"


class OlderArtifact(UsageError):
    what = "'{path}' has the artifact format {found}, which this bricolage does not read any more (it reads {known})"
    hint = "Make it again with `bricolage optimize`"


class ForeignArtifact(UsageError):
    what = "'{path}' was planned for another machine or other versions: {difference}"
    hint = "Plan it again here with `bricolage optimize`, or run the best available backend with --any-machine"


class NotEnoughMemory(UsageError):
    what = "running it takes {wanted} for tensors alone; this machine has {present} of memory"
    hint = "Use smaller shapes, or a machine with more memory"


class ForeignPlan(UsageError):
    what = "the plan '{name}' is not for this model: {difference}"
    hint = "Race artifacts of one model, made by this version of bricolage"


class BadDevices(UsageError):
    what = "'{path}' does not describe devices: {reason}"
    hint = "Write [[device]] and [[link]] tables as docs/scheduling.md shows them"


# --- backends ---------------------------------------------------------------------------------------------------


class NoBackend(BricolageError):
    what = "no backend is usable{why}"
    hint = "Install one, for example: pip install 'bricolage[onnxruntime]'"
    exit_code = NO_BACKEND


class MissingBackend(BricolageError):
    what = "backend '{name}' is missing: {reason}"
    hint = "{cure}"
    exit_code = NO_BACKEND


class DuplicateBackend(UsageError):
    what = "backend '{name}' is registered twice: by {first} and by {second}"
    hint = "Uninstall one of the two packages"


class BrokenPlugin(UsageError):
    what = "the backend plugin '{name}' from {source} could not be loaded: {reason}"
    hint = "Upgrade or uninstall that package"


class Refused(BricolageError):
    """A backend declines a region. Not a failure of the run: the candidate is dropped with this reason."""

    what = "{backend} refuses the region: {reason}"
    hint = "Another backend may take it; `bricolage backends` lists them"


class UnsupportedOperator(BricolageError):
    """A lowering meets an operator it has no faithful translation for."""

    what = "{library} has no lowering for {op_type} (opset {opset}): {reason}"
    hint = "Another backend may run it; `bricolage backends` lists them"


class BackendFailed(BricolageError):
    what = "{backend} failed {stage}: {reason}"
    hint = (
        "`bricolage optimize` goes on without it, and `bricolage costs list --failures` shows all such reasons; "
        "an artifact that cannot be loaded any more is planned anew with `bricolage optimize --replan`"
    )


class SizeFailed(BricolageError):
    what = "nothing installed runs the model at {sizes}: {reasons}"
    hint = (
        "This process is unharmed: the size was tried in another one. `bricolage optimize --shape NAME=SIZE` plans for it, "
        "and says more; another backend may run it (`bricolage backends` lists them)"
    )
    exit_code = NO_BACKEND


class ForkedProcess(UsageError):
    what = "{backend} cannot run in this process, which was forked after it was loaded: its threads stayed behind"
    hint = "Fork first and load the artifact in each process, or start processes with multiprocessing's 'spawn'"


# --- results ----------------------------------------------------------------------------------------------------


class NotAccurate(BricolageError):
    what = "no contestant reaches the accuracy asked for: the best error is {error:.2e}, the bound {bound:.2e}"
    hint = "Ask for less (--precision medium) or give a --tolerance"
    exit_code = INACCURATE


class LatencyLimit(UsageError):
    what = "nothing answers 99 of 100 requests within {limit}: the best p99 is {best} ({name})"
    hint = "Give a --latency-limit above that, or leave it out"


class NoPlacement(BricolageError):
    what = "no candidate covers operator '{name}' ({op_type})"
    hint = "`bricolage backends` shows which backends could be added here"
    exit_code = NO_BACKEND


class Unclaimed(NoPlacement):
    what = "no backend here takes operator '{name}' ({op_type}): {reasons}"


class NoReference(BricolageError):
    what = "no float64 reference could be computed: {reason}"
    hint = "Give inputs of your own with --input, or install what knows more operators: bricolage[torch,onnxruntime]"
    exit_code = INACCURATE


class ReferenceLimit(BricolageError):
    what = "the float64 reference was given up: {reason}"
    hint = (
        "Without it no answer can be verified. Give a longer --budget if the model needs the time, a larger --memory-limit if it "
        "needs the memory; where its process was killed, give the same command again"
    )
    exit_code = INACCURATE


class NoCover(BricolageError):
    """Every operator has a candidate, but no choice of them fits together."""

    what = "no choice of candidates covers the graph exactly once without a cycle{where}"
    hint = "Allow more backends (--backend), or give a longer --budget, so that more regions are measured"
    exit_code = NO_BACKEND


class NotReduced(BricolageError):
    """A program fails, and no part of it that was tried fails in the same way by itself."""

    what = "{program} fails ({verdict}), but no change at fault shows that in a model of its own"
    hint = "`bricolage bisect` shows what is known of it; try again on a machine with nothing else to do"
    exit_code = INACCURATE


# --- rewriting --------------------------------------------------------------------------------------------------


class UnknownFamily(UsageError):
    what = "there is no rule or family of rules '{name}'"
    hint = "`bricolage rules list` shows them; the families are: {known}"


class EndlessRewriting(BricolageError):
    what = "rewriting does not come to an end: {count} rules were applied, lastly {rule}"
    hint = "Leave that rule out with --skip; the model as it is needs no rewriting to run"


class WrongRewrite(BricolageError):
    """A rewritten model gives another answer than the original; bisection found the rule."""

    what = "application {number}, of rule {rule}, makes the error {error:.2e}, the bound is {bound:.2e} (it replaced {removed})"
    hint = "Nothing was written. Leave the rule out with --skip {rule}"
    exit_code = INACCURATE


class FalseRule(BricolageError):
    """The two sides of a rule differ."""

    what = "rule {rule} is false on its example {number}: {why}"
    hint = "Mend its right side, or add the condition that it lacks"
    exit_code = INACCURATE


class BadRuleFile(UsageError):
    what = "line {line} of the rule file '{path}' is no rule: {reason}"
    hint = 'One JSON object a line: {{"rule": "relu(relu(x)) = relu(x)"}}; docs/rule-generator.md lists the operators'


# --- training ---------------------------------------------------------------------------------------------------


class TrainingOperator(UsageError):
    what = "operator '{name}' has the type {domain}::{op_type}, which exists only for training"
    hint = "Export the model for inference (evaluation mode)"


# --- clusters ---------------------------------------------------------------------------------------------------


class BadCluster(UsageError):
    what = "'{path}' describes no cluster: {reason}"
    hint = "docs/clusters.md lists what such a file may hold"


class BadHistory(UsageError):
    what = "line {line} of '{path}'{column}: {reason}"
    hint = "Mend the line, or leave it out; docs/clusters.md lists the columns of each format"


class UnknownHistory(UsageError):
    what = "'{path}' is no history of jobs in a format that is known: {reason}"
    hint = "A table needs the columns submit, duration and devices; `bricolage cluster replay --help` lists the formats"


class RatesNeeded(UsageError):
    what = "'{path}' counts steps, and no rates are given"
    hint = "Give the rates of its kinds of jobs on each kind of device with --rates (Gavel's JSON, or a CSV table)"


class JobFitsNowhere(UsageError):
    what = "job {name} needs {devices} devices of {kinds} at once, and the cluster has {there}"
    hint = "Add devices (--add KIND=N), or leave the job out of the history"


class ClusterStuck(BricolageError):
    what = "{waiting} jobs wait at {at} s, no job runs, and nothing is due to change"
    hint = (
        "A node that fails must come back before the jobs that need it can run; check [[failure]] in the cluster's file"
    )


class UnknownPolicy(UsageError):
    what = "there is no policy '{name}'"
    hint = "Use one of {known}; or all"


class PolicyRefuses(UsageError):
    what = "policy {name} cannot serve this history: {reason}"
    hint = "Give another policy, or all of those that can (--policy all)"


# --- rewriting --------------------------------------------------------------------------------------------------


class BadExtractionProblem(UsageError):
    what = "this e-graph cannot be extracted from: {where} {reason}"
    hint = "Costs are numbers of at least 0, and every child and root is one of its classes"


class NoExtraction(UsageError):
    what = "class {root} of the e-graph holds no finite term"
    hint = "Every way to compute it needs itself or a node of infinite cost; add a leaf or price a node"


class BadTerm(UsageError):
    what = "a node with operator {operator!r} names {child} as a child, which is no class of the e-graph"
    hint = "Add the children first and pass the classes that `add` returned"


class BadRule(UsageError):
    what = "rule '{name}' cannot be used: {reason}"
    hint = "Every variable of the right side must be bound on the left, and both sides must have equally many terms"
