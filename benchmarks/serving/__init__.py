"""Executables among others: neighbours, paces, packs, clusters that measure."""
