"""Of rewriting: rules, proofs, extraction."""

from __future__ import annotations

from bricolage.errors.base import INACCURATE, BricolageError, UsageError


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
    hint = "Correct its right side, or add the missing condition"
    exit_code = INACCURATE


class BadRuleFile(UsageError):
    what = "line {line} of the rule file '{path}' is no rule: {reason}"
    hint = 'One JSON object a line: {{"rule": "relu(relu(x)) = relu(x)"}}; docs/manual/rewrite.md lists the operators'


class BadEquationFile(UsageError):
    what = "line {line} of '{path}' is no equation of another tool: {reason}"
    hint = (
        "TASO's graph_subst.pb, or text as Tensat writes it: matmul(matmul(a,b),c)==matmul(a,matmul(b,c)); "
        "see docs/manual/rewrite.md"
    )


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
