"""The table of changes to a training step in docs/design/training.md, as the code has them."""

from __future__ import annotations

from bricolage.train.predict.variant import CHANGES


def changes_table() -> str:
    """The table of changes in docs/design/training.md."""
    rows = ["| words | what changes | restriction |", "|---|---|---|"]
    for change in CHANGES.values():
        restriction = f"needs {_list_changes(change.needs, ' or ')}" if change.needs else ""
        if change.only_with is not None:
            restriction = f"only with {_list_changes(change.only_with)}"
        words = ", ".join(f"`{form}`" for form in change.forms)
        rows.append(f"| {words} | {change.meaning} | {restriction} |")
    return "\n".join(rows)


def _list_changes(names: tuple[str, ...], separator: str = ", ") -> str:
    words = [word for name in names for word in ([CHANGES[name].key] if CHANGES[name].key else CHANGES[name].flags)]
    return separator.join(f"`{word}`" for word in words)
