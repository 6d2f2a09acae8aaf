"""Einsum: transposes are a matter of its letters, and the plain products among them have an operator of their own."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import permutation, rank, require, text
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

a, b = AnyValue("a"), AnyValue("b")


def _letters(match: Match) -> tuple[list[str], str]:
    """The letters of each operand and those of the result.

    Raises:
        MatchFailure: the equation has an ellipsis.
    """
    equation = text(match.node("einsum"), "equation", "").replace(" ", "")
    if "." in equation:
        raise MatchFailure("the equation has an ellipsis")
    operands, arrow, output = equation.partition("->")
    if not arrow:
        output = "".join(sorted(letter for letter in set(operands) - {","} if operands.count(letter) == 1))
    return operands.split(","), output


def _format_equation(operands: Sequence[str], output: str) -> str:
    return f"{','.join(operands)}->{output}"


class TransposeIntoEinsum(Rule):
    """Einsum(…, Transpose(x), …) = Einsum(…, x, …), with the letters of x in another order

    for equations without an ellipsis.
    """

    family = "einsum"
    examples = (
        Example("float[2,3] a, float[2,4] b", 't = Transpose(a) y = Einsum<equation="ij,jk->ik">(t, b)'),
        Example(
            "float[2,3,4] a, float[5,4,3] b",
            't = Transpose<perm=[2,0,1]>(a) s = Transpose<perm=[0,2,1]>(b) y = Einsum<equation="abc,dca">(t, s)',
        ),
        Example("float[N,3] a", 't = Transpose(a) y = Einsum<equation="ij->j">(t)'),
    )
    counterexamples = (
        examples[0].but("ellipsis", 't = Transpose(a) y = Einsum<equation="...ij,jk->...ik">(t, b)'),
        Example("float[2,3] a, float[3,4] b", 'y = Einsum<equation="ij,jk->ik">(a, b)', why="no operand"),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        return [op.variadic("Einsum", name="einsum")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        operands, output = _letters(match)
        values = []
        for index, value in enumerate(match.node("einsum").inputs):
            assert value is not None
            node = value.producer()
            if node is not None and node.op_type == "Transpose" and not node.domain and node.inputs[0] is not None:
                perm, value = permutation(node, node.inputs[0]), node.inputs[0]
                operands[index] = "".join(operands[index][perm.index(axis)] for axis in range(len(perm)))
            values.append(value)
        require(tuple(values) != tuple(match.node("einsum").inputs), "no operand is a transpose")
        return op.Einsum(*values, equation=_format_equation(operands, output))


class TransposeOfEinsum(Rule):
    """Transpose(Einsum(…)) = Einsum(…), with the letters of the result in another order

    for equations without an ellipsis.
    """

    family = "einsum"
    examples = (
        Example("float[2,3] a, float[3,4] b", 't = Einsum<equation="ij,jk->ik">(a, b) y = Transpose(t)'),
        Example("float[2,3,4] a", 't = Einsum<equation="abc">(a) y = Transpose<perm=[1,2,0]>(t)'),
    )
    counterexamples = (
        examples[0].but("not profitable", outputs="y, t"),
        Example("float[2,3] a", 't = Einsum<equation="...i->i...">(a) y = Transpose(t)', why="ellipsis"),
    )

    def patterns(self) -> list[Op]:
        return [op.Transpose(op.variadic("Einsum", name="einsum"), name="transpose")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        operands, output = _letters(match)
        perm = permutation(match.node("transpose"), match.node("einsum").outputs[0])
        turned = "".join(output[axis] for axis in perm)
        return op.Einsum(*match.node("einsum").inputs, equation=_format_equation(operands, turned))


class EinsumToProduct(Rule):
    """Einsum(a, b, …ij, …jk → …ik) = MatMul(a, b)

    where both operands have the same leading letters or the second has none, in either order of the operands.
    """

    family = "einsum"
    enabling = True
    examples = (
        Example("float[2,3] a, float[3,4] b", 'y = Einsum<equation="ij,jk->ik">(a, b)'),
        Example("float[2,5,3] a, float[2,3,4] b", 'y = Einsum<equation="bqd,bdk->bqk">(a, b)'),
        Example("float[3,4] a, float[2,5,3] b", 'y = Einsum<equation="io,bsi->bso">(a, b)'),
    )
    counterexamples = (
        Example("float[2,3] a, float[4,3] b", 'y = Einsum<equation="ij,kj->ik">(a, b)', why="no plain product"),
        Example("float[3,3] a, float[3,3] b", 'y = Einsum<equation="ij,ji->ij">(a, b)', why="no plain product"),
        Example("float[2,3] a, float[3,4] b", 'y = Einsum<equation="...j,jk->...k">(a, b)', why="ellipsis"),
    )

    def patterns(self) -> list[Op]:
        return [op.Einsum(a, b, name="einsum")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        operands, output = _letters(match)
        for (left, right), values in ((operands, (match["a"], match["b"])), (operands[::-1], (match["b"], match["a"]))):
            if _plain(left, right, output) and rank(values[0]) == len(left):
                return op.MatMul(*values)
        raise MatchFailure("it is no plain product")


def _plain(left: str, right: str, output: str) -> bool:
    """Whether MatMul does the same: …ij times …jk or jk gives …ik, all letters different."""
    if len(left) < 2 or len(right) < 2 or len(set(left)) < len(left) or right[-1] in left:
        return False
    fits = right[-2] == left[-1] and right[:-2] in ("", left[:-2])
    return fits and output == left[:-1] + right[-1]
