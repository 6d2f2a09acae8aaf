"""Exact arithmetic modulo primes on whole numpy arrays.

An array of residues is int64 of shape [rows, ...]: every row is one independent evaluation with a modulus of its own. Rows
come in pairs, first modulo P, then modulo Q, where P = 2 Q + 1 and both are prime: the squares modulo P form a group of
order Q, so that w ** y (modulo P) depends on y modulo Q alone and turns sums modulo Q into products modulo P. That is all
that `exp` needs.

Why fifty bits: a residue is exact in float64, so the quotient of a product by the modulus is found in floating point with
an error below one, and the remainder follows from int64 arithmetic that wraps. A product costs seven numpy calls and no
loop; primes near 2 ** 31 would save three of them and need twice the trials for the same bound.

Both primes are 7 modulo 8, so that 2 is a square in both fields (sqrt(2) exists) and -1 is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

P = 2**50 - 161
Q = (P - 1) // 2
Residues = np.ndarray

_LEFT_BITS = 25  # limbs of 25 and 17 bits: 2048 products of them are summed exactly in float64
_RIGHT_BITS = 17
_BLOCK = 2048
_DIGIT = 7
_DIRECT = 1 << 12  # this many residues are summed in int64 without overflow


class ZeroDivisor(ArithmeticError):
    """The random point makes a denominator zero; another point must be drawn."""


class Field:
    """`pairs` pairs of rows, modulo P and modulo Q."""

    def __init__(self, pairs: int) -> None:
        self.rows = 2 * pairs
        self.moduli = np.tile(np.asarray([P, Q], np.int64), pairs)

    def modulus(self, rank: int) -> Residues:
        """The moduli, shaped to broadcast over residues of `rank` axes (the rows included)."""
        return self.moduli.reshape((self.rows,) + (1,) * (rank - 1))

    def integers(self, values: Sequence[int] | int, rank: int = 1) -> Residues:
        """A Python integer of any size, or one for P and one for Q, as residues [rows, 1, ...] of `rank` axes."""
        pair = (values, values) if isinstance(values, int) else values
        reduced = np.asarray([pair[0] % P, pair[1] % Q], np.int64)
        return np.tile(reduced, self.rows // 2).reshape((self.rows,) + (1,) * (rank - 1))

    def add(self, a: Residues, b: Residues) -> Residues:
        """a + b, residues of [rows, ...] with broadcasting."""
        total = a + b
        reduced: Residues = total % self.modulus(total.ndim)
        return reduced

    def subtract(self, a: Residues, b: Residues) -> Residues:
        """a - b, residues of [rows, ...] with broadcasting."""
        difference = a - b
        reduced: Residues = difference % self.modulus(difference.ndim)
        return reduced

    def multiply(self, a: Residues, b: Residues) -> Residues:
        """Products of residues; the operands broadcast, rows included."""
        modulus = self.modulus(max(a.ndim, b.ndim))
        quotient = np.multiply(a, b, dtype=np.float64)
        quotient /= modulus
        # The quotient is wrong by at most one, so the wrapped difference is the true one, in (-m, 2 m).
        remainder: Residues = (a * b - quotient.astype(np.int64) * modulus) % modulus
        return remainder

    def sum(self, a: Residues, axes: tuple[int, ...]) -> Residues:
        """Sum over `axes`, which are kept with size 1."""
        count = int(np.prod([a.shape[i] for i in axes], dtype=np.int64))
        modulus = self.modulus(a.ndim)
        if count <= _DIRECT:
            direct: Residues = a.sum(axes, keepdims=True) % modulus
            return direct
        high = (a >> 25).sum(axes, keepdims=True) % modulus
        low = (a & (2**25 - 1)).sum(axes, keepdims=True)
        return self.add(self.multiply(high, self.integers(2**25, a.ndim)), low % modulus)

    def product(self, a: Residues, axis: int) -> Residues:
        """Product over one axis, which is kept with size 1."""
        a = np.moveaxis(a, axis, -1)
        if not a.shape[-1]:
            a = np.ones((*a.shape[:-1], 1), np.int64)
        while a.shape[-1] > 1:
            half = a.shape[-1] // 2
            folded = self.multiply(a[..., :half], a[..., half : 2 * half])
            a = np.concatenate([folded, a[..., 2 * half :]], -1)
        return np.moveaxis(a, -1, axis)

    def matmul(self, a: Residues, b: Residues) -> Residues:
        """[rows, ..., m, k] times [rows, ..., k, n]; the axes between broadcast as numpy's do, both have as many."""
        inner = a.shape[-1]
        total: Residues | None = None
        for start in range(0, max(inner, 1), _BLOCK):
            part = self._block(a[..., start : start + _BLOCK], b[..., start : start + _BLOCK, :])
            total = part if total is None else self.add(total, part)
        assert total is not None
        return total

    def _block(self, a: Residues, b: Residues) -> Residues:
        modulus = self.modulus(a.ndim)
        left = [(a >> (_LEFT_BITS * i) & (2**_LEFT_BITS - 1)).astype(np.float64) for i in range(2)]
        right = [(b >> (_RIGHT_BITS * j) & (2**_RIGHT_BITS - 1)).astype(np.float64) for j in range(3)]
        result: Residues | None = None
        for i, limb in enumerate(left):
            row: Residues | None = None
            for other in reversed(right):
                partial = np.matmul(limb, other).astype(np.int64) % modulus
                shifted = self.multiply(row, self.integers(2**_RIGHT_BITS, a.ndim)) if row is not None else None
                row = partial if shifted is None else self.add(shifted, partial)
            assert row is not None
            if i:
                row = self.multiply(row, self.integers(2**_LEFT_BITS, a.ndim))
            result = row if result is None else self.add(result, row)
        assert result is not None
        return result

    def inverse(self, a: Residues) -> Residues:
        """Inverses of all elements at the price of three products each: one division inverts the product of all.

        Raises:
            ZeroDivisor: an element is zero.
        """
        if not a.all():
            raise ZeroDivisor
        if not a.size:
            return a
        pair = Field(1)
        together = a.reshape(self.rows // 2, 2, -1).swapaxes(0, 1)
        levels = [together.reshape(2, -1)]
        while levels[-1].shape[1] > 1:
            last = levels[-1]
            if last.shape[1] % 2:
                last = levels[-1] = np.concatenate([last, np.ones((2, 1), np.int64)], 1)
            levels.append(pair.multiply(last[:, ::2], last[:, 1::2]))
        root = levels.pop()[:, 0].tolist()
        inverse = pair.integers([pow(root[0], -1, P), pow(root[1], -1, Q)], 2)
        for level in reversed(levels):
            down = np.empty_like(level)
            inverse = inverse[:, : level.shape[1] // 2]
            down[:, ::2] = pair.multiply(inverse, level[:, 1::2])
            down[:, 1::2] = pair.multiply(inverse, level[:, ::2])
            inverse = down
        separate = inverse[:, : together[0].size].reshape(together.shape).swapaxes(0, 1)
        return np.ascontiguousarray(separate).reshape(a.shape)

    def power(self, a: Residues, exponents: Sequence[int]) -> Residues:
        """Each row to an exponent of its own, not negative."""
        result = np.ones_like(a)
        longest = max(e.bit_length() for e in exponents)
        for bit in reversed(range(longest)):
            if bit + 1 < longest:
                result = self.multiply(result, result)
            bits = np.asarray([e >> bit & 1 for e in exponents], bool)
            chosen = bits.reshape((self.rows,) + (1,) * (a.ndim - 1))
            result = self.multiply(result, np.where(chosen, a, 1))
        return result


class Exponential:
    """x -> w ** x, from residues modulo Q to residues modulo P, by tables of the base's powers.

    `bases` holds a square other than 1 modulo P for each pair of rows.
    """

    def __init__(self, bases: Sequence[int]) -> None:
        self._field = Field(len(bases))
        self._digits = -(-Q.bit_length() // _DIGIT)
        steps = [np.repeat(np.asarray(bases, np.int64), 2)]
        for _ in range(self._digits * _DIGIT - 1):
            steps.append(self._field.multiply(steps[-1], steps[-1]))
        # powers[:, d, j] is the base to the power 2 ** (7 d + j); each doubles the part of the table that is made.
        powers = np.stack(steps, -1).reshape(-1, self._digits, _DIGIT)
        self._tables = np.ones((2 * len(bases), self._digits, 1), np.int64)
        for j in range(_DIGIT):
            more = self._field.multiply(self._tables, powers[..., j : j + 1])
            self._tables = np.concatenate([self._tables, more], -1)

    def __call__(self, exponents: Residues) -> Residues:
        """Rows modulo P of the result come from the rows modulo Q of `exponents`; its rows modulo Q mean nothing."""
        shifted = np.repeat(exponents[1::2], 2, axis=0)
        rows = np.arange(len(shifted)).reshape((-1,) + (1,) * (shifted.ndim - 1))
        result = np.ones_like(shifted)
        for digit in range(self._digits):
            result = self._field.multiply(
                result, self._tables[rows, digit, shifted >> (_DIGIT * digit) & 2**_DIGIT - 1]
            )
        return result
