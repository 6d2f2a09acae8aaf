"""Rules found by enumeration: pairs of small terms that compute the same."""
