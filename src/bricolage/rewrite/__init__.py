"""Rewriting: finding, proving and searching graph substitutions."""
