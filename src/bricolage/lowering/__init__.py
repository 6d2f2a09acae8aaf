"""ONNX operators as functions of an array library.

`lowering.operators` states each operator once, over the small vocabulary of `lowering.arrays`; `lowering.torch` and
`lowering.jax` supply that vocabulary, replace operators by the library's own fused calls where it has them, and build a
module or a function from a whole model. The native engine supplies it a third time, over its own tensors
(`native.ir.lowerings.arrays`). Neither library is imported before `bricolage.lowering.torch` or
`bricolage.lowering.jax` is.
"""
