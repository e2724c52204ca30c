"""The environment variables that the Python side reads itself. A knob has two names: Corro's, which wins, and Horovod's."""

from __future__ import annotations

import os


def setting(name: str) -> str | None:
    """What the user set for the knob called `name` (without prefix); None when it is unset or empty."""
    return os.environ.get(f"CORRO_{name}") or os.environ.get(f"HOROVOD_{name}") or None


def flag(name: str) -> bool:
    """Horovod's rule: true if the leading integer of the value is above zero; the common words work too."""
    text = (setting(name) or "").strip().lower()
    if text in ("true", "yes", "on"):
        return True
    digits = "".join(char if char.isdigit() else " " for char in text).split(" ")[0]
    return bool(digits) and int(digits) > 0
