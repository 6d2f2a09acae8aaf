"""Learns a policy for `--search learned-keys` from files of models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bricolage.costs.models.roofline import OperatorRoofline
from bricolage.errors import BadOption
from bricolage.frontends import to_model
from bricolage.graph.prepare import simplify
from bricolage.rewrite.catalogue import choose_rules
from bricolage.tune.key_learning import KeyLearning, KeyLearningOptions, collect_parts, learn_keys


def learn_from_files(
    models: Sequence[Path], out: Path, *, rounds: int = 200, seconds: float = 600.0, seed: int = 0
) -> KeyLearning:
    """Trains a policy on models, and writes it.

    Args:
        models: ONNX files.
        out: the file for the policy.
        rounds: of learning.
        seconds: to look at graphs, and to learn, at most each.
        seed: of chance.

    Raises:
        BadOption: no rule applies to any of them.
        MissingLibrary: PyTorch is not installed.
        UsageError: a model is not usable.
        OSError: the file cannot be written.
    """
    options, rules = KeyLearningOptions(rounds=rounds, seed=seed), choose_rules(stable=True, generated=False)
    networks = {}
    for file in models:
        model = to_model(file)
        simplify(model)
        networks[str(file)] = collect_parts(model, rules, OperatorRoofline(), options, seconds=seconds / len(models))
    if not any(networks.values()):
        files = ", ".join(map(str, models))
        raise BadOption(option="MODEL", value=files, advice="Give models to which a rule applies")
    learned = learn_keys(networks, options, limit_s=seconds)
    learned.policy.save(out)
    return learned
