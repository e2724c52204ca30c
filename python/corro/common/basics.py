"""Horovod's place for the basics, as an object whose methods are the functions of `corro._front.basics`."""

from __future__ import annotations

from typing import Any

from corro._front import basics
from corro._front.arguments import Adasum, Average, Max, Min, Product, Sum
from corro._front.process_sets import ids_and_ranks


class HorovodBasics:
    """Made with the path of a native library in Horovod; here there is one engine, whatever the arguments."""

    Average, Sum, Adasum, Min, Max, Product = Average, Sum, Adasum, Min, Max, Product

    def __init__(self, *_library_path: str) -> None:
        pass

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return ids_and_ranks()

    def __getattr__(self, name: str) -> Any:
        return getattr(basics, name)
