"""The functions that the commands call. `import bricolage` offers `optimize`; the others may change without notice."""
