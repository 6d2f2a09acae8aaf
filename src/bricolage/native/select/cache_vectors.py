"""C of vectors that attention to a cache needs: what is stored as float32, and sums of lanes."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.native.cpu.isa import Isa


def sum_lanes(lanes: int) -> str:
    """C that makes one vector of as many as it has lanes: the sum of each."""
    lines = [f"  {line}" for line in fold_lanes([f"v[{i}]" for i in range(lanes)], lanes, 0)]
    return "\n".join(
        [
            "#if defined(__clang__) || __GNUC__ >= 12",
            "#define nat_pair(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)",
            "#else",
            "#define nat_pair(a, b, ...) __builtin_shuffle(a, b, (nat_lanes){__VA_ARGS__})",
            "#endif",
            "INLINE vec nat_lane_sums(vec *v) {",
            *lines,
            "  return v[0];",
            "}",
        ]
    )


def fold_lanes(vectors: Sequence[str], lanes: int, first: int) -> list[str]:
    """C that puts some vectors together in the first of them by pairs, as the levels from `first` on of `sum_lanes`. Pairs of
    vectors are folded into one, first within 16 bytes, where a shuffle takes one step, then across them: a third of the steps of
    folding each by itself."""
    lines = []
    for level in range(first, first + len(vectors).bit_length() - 1):
        unit, span = (1, 4) if level < 2 else (4, lanes)
        low, high = (_fold_order(lanes, unit, span, odd) for odd in (0, 1))
        for at in range(len(vectors) >> (level - first + 1)):
            pair = f"{vectors[2 * at]}, {vectors[2 * at + 1]}"
            lines.append(f"{vectors[at]} = nat_pair({pair}, {low}) + nat_pair({pair}, {high});")
    return lines


def _fold_order(lanes: int, unit: int, span: int, odd: int) -> str:
    """Lanes of two vectors: of each span of the first the even or odd units, then those of the second."""
    order: list[int] = []
    for start in range(0, lanes, span):
        for vector in (0, lanes):
            for at in range(start + odd * unit, start + span, 2 * unit):
                order += range(vector + at, vector + at + unit)
    return ", ".join(map(str, order))


def widen_stored(dtype: str, isa: Isa) -> str:
    """C that makes a vector of float32 of what a cache holds."""
    if dtype == "float16" and isa.reads_halves:
        load = (
            "_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))"
            if isa.lanes == 16
            else "_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p))"
        )
        attribute = ' __attribute__((target("f16c")))' if isa.lanes == 8 else ""
        inline = f"static inline __attribute__((always_inline)){attribute}"
        return f"#include <immintrin.h>\n{inline} vec nat_half_vector(const uint16_t *p) {{ return (vec){load}; }}"
    if dtype == "int8":
        return "\n".join(
            [
                "typedef int8_t nat_signed_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));",
                "INLINE vec nat_signed_vector(const int8_t *p) {",
                "  return (vec) __builtin_convertvector(*(const nat_signed_bytes *)p, vec);",
                "}",
            ]
        )
    name, each = ("nat_half_vector", "wide_from_half") if dtype == "float16" else ("nat_wide_vector", "nat_widen")
    return "\n".join(
        [
            f"INLINE vec {name}(const uint16_t *p) {{",
            "  vec v;",
            f"  for (long i = 0; i < LANES; i++) v[i] = {each}(p[i]);",
            "  return v;",
            "}",
        ]
    )
