"""The knobs that Python code asks for itself, as `crates/corro-core/src/config.rs` knows them: each has Corro's name, which
wins, and perhaps Horovod's. Names are given without prefix.
"""

from __future__ import annotations

from corro._native import flag, setting

__all__ = ["flag", "setting"]
