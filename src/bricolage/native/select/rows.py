"""C of softmax and of normalisations over rows that a thread keeps."""

from __future__ import annotations

import math

from bricolage.native.cpu.emit import KEEP_SCALAR, VECTORISED, Body, epilogue, indent_lines, literal
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import unflatten, variable
from bricolage.native.ir.tensors import Normalise, Softmax
from bricolage.native.select.algorithm import Algorithm, KernelRequest

_WORK = 32
"""Multiply-adds that take as long as an element."""
SOFTMAX = "(row[i] * scale)"
"""An element of a softmax as C, after `exponentials`."""


def exponentials(width: int) -> list[str]:
    """Makes exponentials of `row`, and `scale`, which makes a softmax of them."""
    return [
        f"const float top = nat_top(row, {width});",
        VECTORISED,
        f"for (long i = 0; i < {width}; i++) row[i] = nat_exp_below(row[i] - top);",
        f"const float scale = 1.0f / nat_total(row, {width});",
    ]


def reductions(lanes: int) -> dict[str, str]:
    """What makes one number of a row, by name. Lanes of a vector are put together in pairs: of a loop that is said to reduce, GCC
    12 adds them one after another, in the order of the language, which takes longer than a short row."""

    def emit_fold(step: str) -> str:
        halves = [lanes >> bit for bit in range(1, lanes.bit_length())]
        orders = [", ".join(str(lane ^ half) for lane in range(lanes)) for half in halves]
        return "\n".join(f"  v = {step.format(f'nat_shuffle(v, {order})')};" for order in orders)

    return {
        "nat_most": """typedef __typeof__((vec){0} > (vec){0}) nat_mask;
INLINE vec nat_most(vec a, vec b) {  /* a > b ? a : b */
#if (LANES == 16 && defined(__AVX512F__)) || (LANES == 8 && defined(__AVX__))
  vec most; /* of which GCC 12 makes a mask with AVX-512 */
  __asm__("vmaxps %2, %1, %0" : "=v"(most) : "v"(a), "v"(b));
  return most;
#else
  const nat_mask m = a > b;
  return (vec)((m & (nat_mask)a) | (~m & (nat_mask)b));
#endif
}""",
        "nat_top": f"""INLINE float nat_top(const float *p, long n) {{
  vec v = (vec){{0}} - __builtin_inff();
  long i = 0;
  for (; i + LANES <= n; i += LANES) v = nat_most(load(p + i), v);
{emit_fold("nat_most({}, v)")}
  float top = v[0];
  for (; i < n; i++) top = p[i] > top ? p[i] : top;
  return top;
}}""",
        "nat_total": f"""INLINE float nat_total(const float *p, long n) {{
  vec v = {{0}}, w = {{0}};
  long i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {{ v += load(p + i); w += load(p + i + LANES); }}
  for (; i + LANES <= n; i += LANES) v += load(p + i);
  v += w;
{emit_fold("v + {}")}
  float sum = v[0];
  for (; i < n; i++) sum += p[i];
  return sum;
}}""",
        "nat_squares": f"""INLINE float nat_squares(const float *p, long n, float mean) {{  /* of what is around the mean */
  vec v = {{0}}, w = {{0}};
  long i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {{
    const vec a = load(p + i) - mean, b = load(p + i + LANES) - mean;
    v += a * a;
    w += b * b;
  }}
  for (; i + LANES <= n; i += LANES) {{ const vec a = load(p + i) - mean; v += a * a; }}
  v += w;
{emit_fold("v + {}")}
  float sum = v[0];
  for (; i < n; i++) sum += (p[i] - mean) * (p[i] - mean);
  return sum;
}}""",
    }


def _rows(kernel: PlannedKernel, plan: FusionPlan, weights: ConstantBlock, lanes: int) -> Phase:
    """A softmax or a normalisation: each row is read once into a thread's own memory, and written once."""
    root = kernel.root
    assert isinstance(root, (Softmax, Normalise))
    *lead, width = root.shape
    o, i = variable("o", math.prod(lead)), variable("i", width)
    coords = (*unflatten(o, lead), i)
    memory = FunctionMemory(weights)
    body = Body(plan, memory, kernel.targets)
    element = body.value(root.source, coords)
    if isinstance(root, Softmax):
        expression = SOFTMAX
        middle = exponentials(width)
    else:
        expression = "((row[i] - mean) * scale)"
        part = literal(1.0 / width, "float32")
        middle = [
            f"const float mean = {f'nat_total(row, {width}) * {part}' if root.centred else '0.0f'};",
            f"const float scale = 1.0f / __builtin_sqrtf(nat_squares(row, {width}, mean) * {part}"
            f" + {literal(root.epsilon, 'float32')});",
        ]
    inside = [
        *([KEEP_SCALAR] if body.guarded else []),
        f"float row[{width}];",
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indent_lines([*body.lines, f"row[i] = {element};"]),
        "}",
        *middle,
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indent_lines(epilogue(kernel, plan, memory, coords, expression)),
        "}",
    ]
    lines = ["for (long o = begin; o < end; o++) {", *indent_lines(inside), "}"]
    share = ParallelRange(math.prod(lead), _WORK * width)
    return Phase(lines, share, memory.operands, helpers=reductions(lanes))


def _applies(request: KernelRequest) -> bool:
    """To softmax, and to normalisations of rows that a thread can keep."""
    return isinstance(request.root, Softmax) or (isinstance(request.root, Normalise) and request.root.in_rows)


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    return [_rows(request.kernel, request.plan, weights, request.target.lanes)]


ROWS = Algorithm("rows", _applies, _generate)
