"""Upper bounds on the degree of a rational function, carried along with its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Degree:
    """Every element of a tensor is a quotient of polynomials of at most these total degrees in what was drawn.

    What was drawn are the elements of the inputs and the outputs of uninterpreted functions.
    """

    numerator: int = 0
    denominator: int = 0

    def plus(self, other: Degree) -> Degree:
        """Of a sum, over the common denominator."""
        crossed = max(self.numerator + other.denominator, other.numerator + self.denominator)
        return Degree(crossed, self.denominator + other.denominator)

    def times(self, other: Degree) -> Degree:
        """Of a product."""
        return Degree(self.numerator + other.numerator, self.denominator + other.denominator)

    def inverse(self) -> Degree:
        """Of the reciprocal."""
        return Degree(self.denominator, self.numerator)

    def power(self, exponent: int) -> Degree:
        """For an exponent that is not negative; also the product of that many elements."""
        return Degree(self.numerator * exponent, self.denominator * exponent)

    def summed(self, count: int) -> Degree:
        """The sum of `count` elements, whose denominators may all differ."""
        return Degree(self.numerator + max(count - 1, 0) * self.denominator, self.denominator * max(count, 1))

    def either(self, other: Degree) -> Degree:
        """Elements of both kinds in one tensor."""
        return Degree(max(self.numerator, other.numerator), max(self.denominator, other.denominator))

    @property
    def total(self) -> int:
        """Of the polynomial that is zero where two such quotients agree: numerator and denominator together."""
        return self.numerator + self.denominator


VARIABLE = Degree(1, 0)
