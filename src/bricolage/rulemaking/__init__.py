"""Tools of those who write rules: proofs, rules found by enumeration, and how far rules of other tools follow from ours."""
