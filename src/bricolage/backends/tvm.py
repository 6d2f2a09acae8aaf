"""TVM: Relax programs compiled for this processor with LLVM, scheduled without tuning (see `tvm_schedule`).

Tuning with MetaSchedule is left out: this version still has it, but it needs a measuring server and minutes for every
operator, while the rules of `tvm_schedule` come within a few per cent of a library on dense operators at once.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any, ClassVar

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key, load_proto
from bricolage.backends.interface import Backend, Claim, Kind, RegionModel, Resources, Status, installed
from bricolage.backends.tvm_schedule import block_size, schedule
from bricolage.errors import Refused
from bricolage.runtime.buffers import aligned
from bricolage.runtime.kernel import Array, Call, Kernel

_LOG = logging.getLogger(__name__)
_ELEMENTS = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"]
)
_PACKED_FROM = 1 << 14  # elements of a matrix that no longer stays in the first-level cache
_PANEL = 16  # narrowest panel, in elements
_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "HWIO"]}


class Tvm(Backend):
    """Regions of static shape. The number of threads is the process's: it must stand in the environment first."""

    name: ClassVar[str] = "tvm"
    title: ClassVar[str] = "TVM"
    kind: ClassVar[Kind] = "engine"
    compiles_slowly: ClassVar[bool] = True

    def status(self) -> Status:
        return installed("apache-tvm", "tvm", "tvm")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self.name)

    def environment(self, resources: Resources) -> dict[str, str]:
        return {
            "TVM_NUM_THREADS": str(resources.threads),
            "TVM_BIND_THREADS": "0",
            # Waiting threads that spin are faster, but they steal the cores from the next runtime.
            **({} if resources.alone else {"TVM_THREAD_POOL_SPIN_COUNT": "0"}),
        }

    def compile(self, region: RegionModel, variant: str, resources: Resources) -> Kernel:
        for info in (*region.inputs, *region.outputs):
            if not info.static:
                raise Refused(backend=self.title, reason="shapes must be known before running")
            if info.numpy.name not in _ELEMENTS:
                raise Refused(backend=self.title, reason=f"element type of '{info}'")
        if resources.cache is None or which("cc") is None:  # keeping compiled code needs a linker
            return _TvmKernel(region, _build(region, resources.threads))
        library = resources.cache / f"tvm-{content_key(region, variant, str(resources.threads))}.so"
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            partial_library = library.with_name(f"{library.stem}.{os.getpid()}.so")
            try:
                _build(region, resources.threads).export_library(str(partial_library))
                partial_library.replace(library)
            finally:
                partial_library.unlink(missing_ok=True)
        return _TvmKernel(region, _load(library))


def _load(library: Path) -> Any:
    import tvm

    return tvm.runtime.load_module(str(library))


def _build(region: RegionModel, threads: int) -> Any:
    """An executable of the region.

    Raises:
        Refused: the importer does not know something in the model.
    """
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    proto = load_proto(region)
    try:
        module = from_onnx(proto, keep_params_in_input=False)
    except Exception as error:
        raise Refused(backend=Tvm.title, reason=_reason(error)) from error
    target = _target(threads)
    passes = relax.transform
    with target:
        module = tvm.ir.transform.Sequential([passes.DecomposeOpsForInference(), passes.CanonicalizeBindings()])(module)
        module = _rewrite(_channels_last(module))
        lower = [
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
        module = schedule(tvm.ir.transform.Sequential(lower)(module), target, threads)
        explicit = [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            passes.LegalizeOps(),
            passes.RewriteDataflowReshape(),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
        ]
        module = _outputs_given(tvm.ir.transform.Sequential(explicit)(module))
        allocate = [
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
        return relax.build(tvm.ir.transform.Sequential(allocate)(module), target, relax_pipeline=None)


def _reason(error: Exception) -> str:
    """The first line of TVM's message that says something."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


def _target(threads: int) -> Any:
    import tvm
    from tvm.target import codegen

    return tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu(), "num-cores": threads})


def _channels_last(module: Any) -> Any:
    """Convolutions with channels last, which is the order in which their results fill vectors; weights are turned when
    constants are folded. The pass fails on some models; these keep ONNX's order."""
    import tvm
    from tvm import relax

    if not _calls(module, "relax.nn.conv2d"):
        return module
    try:
        return tvm.ir.transform.Sequential(
            [relax.transform.ConvertLayout(_CHANNELS_LAST), relax.transform.Normalize()]
        )(module)
    except tvm.error.InternalError as error:
        _LOG.debug("the layout stays as it is: %s", _reason(error))
        return module


def _calls(module: Any, operator: str) -> bool:
    """Whether the main function calls an operator."""
    import tvm
    from tvm import relax

    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            found.append(node.op.name)

    relax.analysis.post_order_visit(module["main"], visit)
    return operator in found


def _rewrite(module: Any) -> Any:
    """Two operators in better forms (float32 only): erf as a rational function at 3.3e-7 of relative error, because the C
    library's runs one element at a time; and constant right-hand matrices of products cut into panels (`_product`)."""
    from tvm import relax, topi

    @relax.expr_functor.mutator
    class Mutator(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, call: Any) -> Any:
            name = getattr(call.op, "name", "")
            if name not in ("relax.erf", "relax.matmul") or any(str(x.ty.dtype) != "float32" for x in call.args):
                return super().visit_call_(call)
            first = self.visit_expr(call.args[0])
            if name == "relax.erf":
                return self.builder_.call_te(topi.fast_erf, first)
            product = _product(self.builder_, first, call)
            return super().visit_call_(call) if product is None else product

    if not (_calls(module, "relax.erf") or _calls(module, "relax.matmul")):
        return module
    mutator = Mutator(module)
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    return mutator.builder_.get()


def _product(builder: Any, left: Any, call: Any) -> Any:
    """A matrix product whose constant right-hand side lies in panels as wide as the blocks of results that `schedule`
    keeps in registers, so that each panel is read front to back (Goto & van de Geijn 2008, section 4.2.3). None where the
    matrix is small, no constant or has no good width."""
    import tvm
    from tvm import relax, te

    matrix = call.args[1]
    shape = [int(size) for size in left.ty.shape]
    if not isinstance(matrix, tvm.ir.GenericConst) or len(matrix.value.shape) != 2 or len(shape) < 2:
        return None
    depth, columns = map(int, matrix.value.shape)
    rows = next((size for size in reversed(shape[:-1]) if size > 1), 1)
    width = block_size(rows, columns, lanes=16)[1]
    if depth * columns < _PACKED_FROM or width < _PANEL:
        return None
    panels = matrix.value.numpy().reshape(depth, columns // width, width).transpose(1, 0, 2)

    def compute(x: Any, packed: Any) -> Any:
        k = te.reduce_axis((0, depth), "k")
        return te.compute(
            (*shape[:-1], columns),
            lambda *at: te.sum(x[(*at[:-1], k)] * packed[at[-1] // width, k, at[-1] % width], axis=k),
            name="matmul",
        )

    return builder.call_te(compute, left, relax.const(np.ascontiguousarray(panels)), primfunc_name_hint="matmul")


def _outputs_given(module: Any) -> Any:
    """Makes the results of `main` arguments that it fills, where each result is a tensor that `main` allocates.

    Runs between `CallTIRRewrite`, which makes allocations explicit, and memory planning: the variable of an allocation
    becomes a parameter.
    """
    from tvm import relax

    main = module["main"]
    bindings = {binding.var: binding for block in main.body.blocks for binding in block.bindings}

    def source(expression: Any) -> Any:
        while isinstance(expression, relax.Var) and isinstance(getattr(bindings.get(expression), "value", None), relax.Var):
            expression = bindings[expression].value
        return expression

    result = source(main.body.body)
    if result in bindings and isinstance(bindings[result].value, relax.Tuple):
        result = bindings[result].value
    fields = [source(field) for field in (result.fields if isinstance(result, relax.Tuple) else [result])]
    for field in fields:
        call = getattr(bindings.get(field), "value", None)
        if getattr(getattr(call, "op", None), "name", "") != "relax.builtin.alloc_tensor":
            return module
    if len(set(fields)) != len(fields):
        return module
    blocks = [
        relax.BindingBlock([binding for binding in block.bindings if binding.var not in fields])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    module["main"] = relax.Function([*main.params, *fields], body, main.ret_ty, main.is_pure, main.attrs)
    return module


class _TvmKernel(Kernel):
    def __init__(self, region: RegionModel, executable: Any) -> None:
        import tvm
        from tvm import relax

        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._inputs = [(info.sizes, info.numpy) for info in region.inputs]
        self._outputs = [(info.sizes, info.numpy) for info in region.outputs]
        arity = int(self._machine.module["get_function_arity"]("main"))
        self._filled = arity == len(self._inputs) + len(self._outputs)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        main = self._machine["main"]
        arguments = [_tensor(array) for array in inputs]
        if self._filled:
            return partial(main, *arguments, *(_tensor(array) for array in outputs))

        def call() -> None:
            results = main(*arguments)
            for target, result in zip(outputs, [results] if len(outputs) == 1 else results, strict=True):
                np.copyto(target, _array(result, target))

        return call

    def run(self, inputs: Sequence[object]) -> list[object]:
        given = [aligned(sizes, kind) for sizes, kind in self._inputs]
        for target, value in zip(given, inputs, strict=True):
            if np.shape(value) != target.shape:
                raise Refused(backend=Tvm.title, reason=f"compiled for the shape {target.shape}, got {np.shape(value)}")
            target[...] = value
        results = [aligned(sizes, kind) for sizes, kind in self._outputs]
        self.bind(given, results)()
        return list(results)


def _tensor(array: Array) -> Any:
    """The array's memory as a TVM tensor."""
    import tvm

    if not array.flags.writeable:  # DLPack hands out nothing read-only
        raw = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        array = np.frombuffer(raw, np.uint8).view(array.dtype).reshape(array.shape)
    if array.dtype.kind == "V":  # bfloat16 is unknown to numpy's own DLPack
        words = tvm.runtime.from_dlpack(array.view(np.uint16))
        return words._create_view(array.shape, array.dtype.name)
    return tvm.runtime.from_dlpack(array)


def _array(tensor: Any, like: Array) -> Array:
    """A TVM tensor's memory as an array of the type of `like`."""
    if like.dtype.kind == "V":
        return np.from_dlpack(tensor._create_view(like.shape, "uint16")).view(like.dtype)
    return np.from_dlpack(tensor)
