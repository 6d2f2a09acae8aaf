"""The campaigns: what each tries with a block of seeds, and the environment that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.fuzz import engines, mutants, nnsmith, pairs, regions, rules, sources, whole
from benchmarks.fuzz.findings import Finding, store
from benchmarks.fuzz.ledger import Block
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE
from bricolage.errors import NoReference
from bricolage.native.cpu.isa import find_isa
from bricolage.native.cpu.toolchain import FORCED_COMPILER_VARIABLE, LEVEL_VARIABLE

Run = Callable[[str, range, Path], Block]


@dataclass(frozen=True)
class Campaign:
    """Seeds are tried in blocks; a worker process has the environment."""

    name: str
    run: Run
    block: int
    share: float
    """Of the time, relative to the others."""
    environment: Mapping[str, str] = field(default_factory=dict)


def _one_by_one(check: Callable[[str, int, Path, Block], None], name: str, seeds: range, folder: Path) -> Block:
    done = Block(seeds.start, len(seeds))
    for seed in seeds:
        check(name, seed, folder, done)
    return done


def _sampled(
    source: sources.Source,
    check: Callable[[str, sources.Sample, Path, Block], None],
    name: str,
    seed: int,
    folder: Path,
    done: Block,
) -> None:
    try:
        sample = source(seed)
    except (NoReference, sources.NoSample) as error:
        done.void += 1
        done.notes[str(error)[:60]] += 1
        return
    check(name, sample, folder, done)


def _whole(name: str, sample: sources.Sample, folder: Path, done: Block) -> None:
    whole.check(name, sample, folder, done)


def _opinion(name: str, seed: int, folder: Path, done: Block) -> None:
    """The float64 reference beside ONNX's."""
    one = regions.part(seed, done)
    if one is None:
        return
    told = one.truth.disputed()
    done.tested += 1
    if told:
        finding = Finding(name, seed, "reference", "reference", "; ".join(map(str, told)), {})
        done.findings.append(store(folder / "findings", finding, one.proto, one.feeds, _OPINION).name)


_OPINION = '''"""The float64 reference and ONNX's differ."""

import numpy as np
import onnx_ir as ir

from bricolage.graph.inference import infer
from bricolage.testing import Truth

model = ir.load("model.onnx")
infer(model)
for wrong in Truth(model, dict(np.load("inputs.npz"))).disputed():
    print(wrong)
'''


def _native(isa: str, compiler: str, share: float, config: str = "f32", level: str = "3") -> Campaign:
    suffix = ("" if config == "f32" else f"-{config}") + ("" if level == "3" else f"-O{level}")
    return Campaign(
        f"regions-{isa}-{compiler}{suffix}",
        partial(regions.block, config=config),
        32 if level == "3" else 128,
        share,
        {FORCED_ISA_VARIABLE: isa, FORCED_COMPILER_VARIABLE: compiler, LEVEL_VARIABLE: level},
    )


_REGIONS = [
    _native(isa, compiler, share, config, level)
    for isa, compiler, config, share, level in (
        ("amx", "gcc", "bf16", 1.0, "3"), ("avx512", "gcc", "f32", 1.0, "3"), ("avx512", "gcc", "f32", 4.0, "1"),
        ("avx2", "gcc", "f32", 1.0, "3"), ("avx2", "gcc", "f32", 4.0, "1"), ("avx2", "zig", "f32", 1.0, "3"),
        ("generic", "gcc", "f32", 1.0, "3"), ("generic", "gcc", "f32", 2.0, "1"), ("generic", "zig", "f32", 0.5, "3"),
        ("split-avx512", "gcc", "f32", 1.0, "3"), ("split-avx512", "gcc", "f32", 2.0, "1"),
        ("split-avx512", "zig", "f32", 0.5, "3"), ("split-amx", "gcc", "bf16", 0.5, "3"), ("split-amx", "gcc", "bf16x6", 0.5, "3"),
    )
]  # fmt: skip
"""Most regions are compiled with little optimisation, which takes a third of the time: what the generated code says is tested
by them, and what the compiler makes of it at the product's own level by the others."""


def campaigns() -> dict[str, Campaign]:
    """Those that run on this processor, by name."""
    every = [
        *(one for one in _REGIONS if find_isa(one.environment[FORCED_ISA_VARIABLE]) is not None),
        Campaign("opinion", partial(_one_by_one, _opinion), 16, 0.5),
        Campaign("engines", partial(_one_by_one, partial(_sampled, sources.own, engines.check)), 8, 1.5),
        Campaign("pairs", partial(_one_by_one, pairs.check), 21, 1.0),
        Campaign("rules", partial(_one_by_one, rules.check), 16, 1.0),
        Campaign("optimize", partial(_one_by_one, partial(_sampled, sources.own, _whole)), 1, 4.0),
        Campaign(
            "optimize-every",
            partial(_one_by_one, partial(_sampled, sources.own, partial(whole.check, every=True))),
            1,
            1.0,
        ),
        Campaign("nnsmith", partial(_one_by_one, partial(_sampled, nnsmith.sample, engines.check)), 2, 0.7),
        Campaign("mutants", partial(_one_by_one, partial(_sampled, mutants.sample, engines.check)), 4, 0.7),
    ]
    return {one.name: one for one in every}
