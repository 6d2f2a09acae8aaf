"""The network of `search.key_policy` as a module of PyTorch's, for training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bricolage.search.key_policy import KeyFeatures, KeyPolicy, list_weight_shapes


class KeyNetwork(torch.nn.Module):
    """Logits of distributions for each key; in the beginning all are nearly as probable."""

    def __init__(self, names: Sequence[str], hidden: int) -> None:
        """`names` of which a vector each is learned."""
        super().__init__()
        self.names = tuple(names)
        weights = {
            name: torch.nn.Parameter(torch.zeros(shape) if name == "vectors" else torch.randn(shape) / shape[0] ** 0.5)
            for name, shape in list_weight_shapes(len(self.names), hidden).items()
        }
        with torch.no_grad():
            for name in ("enter_bias", "mix_bias", "leave_bias"):
                weights[name].zero_()
            weights["leave"].mul_(0.1)
        self.weights = torch.nn.ParameterDict(weights)
        self._places = {name: place for place, name in enumerate(self.names)}

    def compute_log_probs(self, features: KeyFeatures) -> torch.Tensor:
        """Of distributions, [keys, distributions]: what `KeyPolicy.compute_logits` computes, normalised."""
        w = self.weights
        vectors = torch.cat([w["vectors"], torch.zeros(1, w["enter_bias"].shape[0])])
        of_names = vectors[[self._places.get(name, len(self.names)) for name in features.names]]
        table, touched = torch.tensor(features.table, dtype=torch.float32), torch.tensor(features.touched)
        inner = torch.tanh(table @ w["enter"] + w["enter_bias"] + of_names)
        mean = inner[touched].mean(dim=0) if bool(touched.any()) else torch.zeros(inner.shape[1])
        joined = torch.cat([inner, mean.expand_as(inner)], dim=1)
        logits: torch.Tensor = torch.tanh(joined @ w["mix"] + w["mix_bias"]) @ w["leave"] + w["leave_bias"]
        return logits.log_softmax(dim=1)

    def freeze_policy(self) -> KeyPolicy:
        """The policy that it is now."""
        weights = {name: np.array(weight.detach().double().numpy()) for name, weight in self.weights.items()}
        return KeyPolicy(self.names, weights)
