"""An exported library as an execution provider of ONNX Runtime: its C, what builds it, and a model of one node that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from bricolage.graph.extract import write_model
from bricolage.native.c import define
from bricolage.native.library import TYPE_NUMBERS, InstructionSet, LibraryTensor, provider_source, quote
from bricolage.plan.plan import Plan, TensorSpec

FOLDER = "onnxruntime"
"""Of an exported library: what builds the provider."""
_IR_VERSION, _OPSET, _DOMAIN = 10, 21, "com.microsoft"


def provider_name(name: str) -> str:
    """By which ONNX Runtime knows the provider of a library: names of providers end so."""
    return f"{name}ExecutionProvider"


def context_file(name: str) -> str:
    """The file of the model whose one node is run by the library; it lies next to the weights."""
    return f"{name}_ctx.onnx"


def write_provider(folder: Path, name: str, plan: Plan, tables: Sequence[InstructionSet]) -> None:
    """Writes the provider's C and its CMake file into the folder of a library, and the model with its node next to the weights.

    ONNX Runtime's node has an input at least: nothing is written for a plan without inputs.
    """
    inputs, outputs = tables[0].buckets[0].inputs, tables[0].buckets[0].outputs
    if not inputs:
        return
    macros = define(
        PROVIDER=quote(provider_name(name)),
        INPUTS=len(inputs),
        OUTPUTS=len(outputs),
        SIZES=sum(len(tensor.shape) for tensor in inputs),
    )
    (folder / FOLDER).mkdir()
    source = "\n\n".join([macros, f"#include <{name}.h>", provider_source(name)])
    (folder / FOLDER / f"{name}_provider.c").write_text(source + "\n", encoding="utf-8")
    (folder / FOLDER / "provider.cmake").write_text(_cmake_text(name), encoding="utf-8")
    write_model(_context_model(name, plan, tables), folder / "share" / name / context_file(name))


def _context_model(name: str, plan: Plan, tables: Sequence[InstructionSet]) -> ir.Model:
    """A model with the ends of the plan. An open dimension has its name, so that the provider refuses sizes, with those it has."""
    buckets = tables[0].buckets
    inputs = _values([bucket.inputs for bucket in buckets], plan.inputs)
    outputs = _values([bucket.outputs for bucket in buckets], plan.outputs)
    attributes: dict[str, str | int] = {
        "main_context": 1,
        "embed_mode": int(tables[0].embedded),
        "source": provider_name(name),
        "partition_name": name,
        "hardware_architecture": ",".join(table.name for table in tables),
    }
    if not tables[0].embedded:
        # A library with several sets chooses among their files, which are all in the model's folder.
        attributes["ep_cache_context"] = tables[0].file if len(tables) == 1 else "."
    node = ir.node("EPContext", inputs, attributes, domain=_DOMAIN, outputs=outputs, name=name)
    graph = ir.Graph(inputs, outputs, nodes=[node], opset_imports={"": _OPSET, _DOMAIN: 1}, name=name)
    return ir.Model(graph, ir_version=_IR_VERSION, producer_name="bricolage")


def _values(buckets: Sequence[Sequence[LibraryTensor]], specs: Sequence[TensorSpec]) -> list[ir.Value]:
    """Ends of one side, from what they are in each bucket and what the plan says of them."""
    values: list[ir.Value] = []
    names: set[str] = set()
    for number, tensors in enumerate(zip(*buckets, strict=True)):
        said = specs[number].shape if len(specs) == len(buckets[0]) else None
        shape: list[int | str | None] = []
        for axis, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
            size = said[axis] if said and len(said) == len(tensors[0].shape) else None
            shape.append(size if isinstance(size, str) else sizes[0] if len({*sizes}) == 1 else None)
        kind = ir.TensorType(ir.DataType(TYPE_NUMBERS[tensors[0].dtype]))
        name = tensors[0].name
        while name in names:  # a model may return two values by one name, and a graph may not
            name += f".{number}"
        names.add(name)
        values.append(ir.Value(name=name, shape=ir.Shape(shape), type=kind))
    return values


def _cmake_text(name: str) -> str:
    """What builds the provider: one file with the library in it, of which only two functions are visible."""
    return f"""option(ONNXRUNTIME_PROVIDER "Build {provider_name(name)} of ONNX Runtime 1.23 or newer" OFF)
if(NOT ONNXRUNTIME_PROVIDER)
  return()
endif()
add_library({name}_onnxruntime MODULE "${{CMAKE_CURRENT_LIST_DIR}}/{name}_provider.c")
target_link_libraries({name}_onnxruntime PRIVATE {name}::{name})
set_target_properties({name}_onnxruntime PROPERTIES C_VISIBILITY_PRESET hidden INSTALL_RPATH "$ORIGIN")
if(NOT APPLE)
  target_link_options({name}_onnxruntime PRIVATE "LINKER:--exclude-libs,ALL")
endif()
# The provider declares what it uses. With the folder of onnxruntime_c_api.h it is compiled against that header instead.
if(ONNXRUNTIME_INCLUDE)
  target_include_directories({name}_onnxruntime SYSTEM PRIVATE "${{ONNXRUNTIME_INCLUDE}}")
  target_compile_definitions({name}_onnxruntime PRIVATE ONNXRUNTIME_HEADERS)
endif()
install(TARGETS {name}_onnxruntime LIBRARY DESTINATION "${{CMAKE_INSTALL_LIBDIR}}")
install(FILES "${{CMAKE_CURRENT_LIST_DIR}}/../share/{name}/{context_file(name)}"
  DESTINATION "${{CMAKE_INSTALL_DATADIR}}/{name}")
"""
