"""All rules, and how a user picks among them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module

from bricolage.errors import UnknownFamily
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.rules import generated as shipped

GENERATED = "generated"
FAMILIES = (
    "identity",
    "transpose",
    "layout",
    "reshape",
    "shapes",
    "concat",
    "folding",
    "strides",
    "scaling",
    "einsum",
    "product",
    "activation",
    "normalization",
    "rotary",
    "attention",
    "algebra",
    "functions",
    "reduction",
    "merging",
    "grouping",
    "row_major",
    "splitting",
    "convolution",
    "correction",
    "depth_to_channels",
    "kernel_trimming",
    "channel_padding",
    GENERATED,
)
"""In the order in which their rules are tried; the last is made from a file."""
_MODULES: Mapping[str, Sequence[str]] = {
    "identity": ("identity", "repetition"),
    "transpose": ("transpose", "transpose_into"),
    "reshape": ("reshape", "reshape_motion"),
    "folding": ("folding", "affine_folding"),
    "strides": ("padding", "strides"),
    "normalization": ("normalization", "rms_normalization", "softmax"),
    "rotary": ("rotary", "rotary_pairs"),
    "attention": ("attention", "attention_heads"),
    "algebra": ("algebra", "algebra_sums"),
    "convolution": ("convolution", "convolution_axes"),
    "correction": ("mutants", "correction"),
}
"""Modules of `bricolage.rewrite.rules` of a family, in order, where there are several; else it has the family's name."""


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, in the order in which they are tried at an operator."""
    return (*written_rules(), *shipped.generated_rules())


@cache
def written_rules() -> tuple[Rule, ...]:
    """The rules that are classes, in that order."""
    modules = (name for family in FAMILIES if family != GENERATED for name in _MODULES.get(family, (family,)))
    return tuple(rule for name in modules for rule in _rules_of(name))


def _rules_of(name: str) -> list[Rule]:
    module = import_module(f"bricolage.rewrite.rules.{name}")
    if name == "mutants":
        return list(module.generated_mutants())
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Rule) and kind.__module__ == module.__name__
    ]
    return [kind() for kind in kinds if not inspect.isabstract(kind)]


def choose_rules(
    only: Iterable[str] = (), skip: Iterable[str] = (), *, stable: bool = False, generated: bool = True
) -> list[Rule]:
    """The rules of the families (or with the names) in `only`; where that is empty all, and without `generated` those that were
    found by enumeration are left out. None of those in `skip`; with `stable` none that loses accuracy.

    Raises:
        UnknownFamily: there is no such family or rule.
    """
    kept, left_out = list(only), set(skip)
    valid_names = {rule.family for rule in rules()} | {rule.name for rule in rules()}
    for name in (*kept, *left_out):
        if name not in valid_names:
            raise UnknownFamily(name=name, known=", ".join(FAMILIES))
    offered = rules() if generated or kept else written_rules()
    return [
        rule
        for rule in offered
        if (not kept or rule.family in kept or rule.name in kept)
        and not {rule.family, rule.name} & left_out
        and not (stable and rule.unstable)
    ]


def find_rule(name: str) -> Rule:
    """The rule of a name.

    Raises:
        UnknownFamily: there is none.
    """
    return next(iter(choose_rules([name])))


def by_family(found: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Rules by family, in order."""
    return {family: [rule for rule in found if rule.family == family] for family in FAMILIES}
