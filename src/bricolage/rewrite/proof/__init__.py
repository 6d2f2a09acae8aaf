"""An exact prover for graph substitutions."""

from bricolage.rewrite.proof.prove import Disproved, Proved, Unprovable, Verdict, prove

__all__ = ["Disproved", "Proved", "Unprovable", "Verdict", "prove"]
