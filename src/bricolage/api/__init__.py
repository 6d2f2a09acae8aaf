"""`optimize`, `load`, `Executable`: what `import bricolage` offers."""
