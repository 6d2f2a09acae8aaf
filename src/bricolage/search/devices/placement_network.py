"""The networks of a learned placement: a grouper, and a placer that reads groups in the order of the graph."""

from __future__ import annotations

import torch


class Policy(torch.nn.Module):
    """Operators have logits over groups; groups, as the grouper would fill them, have logits over devices."""

    near: torch.Tensor

    def __init__(self, facts: torch.Tensor, groups: int, devices: int, hidden: int) -> None:
        """`facts`: [operators, features]; their ninth column from behind is where an operator is in the graph, from 0 to 1."""
        super().__init__()
        self._facts = facts
        choice = torch.nn.Linear(hidden, groups)
        with torch.no_grad():
            choice.weight.mul_(0.1)  # so that groups begin along the graph, as `near` has them
        self.grouper = torch.nn.Sequential(torch.nn.Linear(facts.shape[1], hidden), torch.nn.Tanh(), choice)
        self.enter = torch.nn.Linear(facts.shape[1] + 1, hidden)
        self.reader = torch.nn.GRU(hidden, hidden, bidirectional=True, batch_first=True)
        self.placer = torch.nn.Linear(2 * hidden, devices)
        centres = torch.linspace(0.0, 1.0, groups)
        self.register_buffer("near", -((facts[:, -9:-8] - centres) ** 2) * groups**2 / 2)

    def _logits(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[operators, groups] and [groups, devices], logarithms of probabilities."""
        grouping = (self.grouper(self._facts) + self.near).log_softmax(dim=1)
        share = grouping.exp()
        size = share.sum(dim=0)
        mean = share.T @ self._facts / (size[:, None] + 1e-6)
        seen, _ = self.reader(torch.tanh(self.enter(torch.cat([mean, size[:, None] / len(share)], dim=1)))[None])
        return grouping, self.placer(seen[0]).log_softmax(dim=1)

    def sample(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Groups of operators [count, operators] and devices of groups [count, groups]."""
        grouping, placing = self._logits()
        groups = torch.multinomial(grouping.exp(), count, replacement=True).T
        return groups, torch.multinomial(placing.exp(), count, replacement=True).T

    def score(self, groups: torch.Tensor, placed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logarithms of the probabilities of decisions [count, operators + groups], and their entropy."""
        grouping, placing = self._logits()
        chosen = grouping[torch.arange(groups.shape[1]), groups]
        devices = placing[torch.arange(placed.shape[1]), placed]
        entropy = torch.cat([-(log_probs.exp() * log_probs).sum(dim=1) for log_probs in (grouping, placing)])
        return torch.cat([chosen, devices], dim=1), entropy
