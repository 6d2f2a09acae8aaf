"""The rules. A family has a file, or one for each of its ideas; `bricolage.rewrite.catalogue` lists them in order."""
