"""An exact prover for graph substitutions."""

from bricolage.rulemaking.proof.prove import Disproved, Proved, Unprovable, Verdict, prove

__all__ = ["Disproved", "Proved", "Unprovable", "Verdict", "prove"]
