"""How a tree of gradients is reduced: the rules that `value_and_grad` and `DistributedOptimizer` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from corro._front.arguments import Average
from corro._front.engine_compression import Settings, name_apart, of_spec, settings_of
from corro._front.process_sets import ProcessSet, global_process_set
from corro.common.util import split_list
from corro.jax import _constants
from corro.jax.compression import Compression
from corro.jax.mpi_ops import allreduce


@dataclass(frozen=True)
class Reduction:
    """Reduces trees of gradients, all in the same manner."""

    name: str
    op: int = Average
    compression: Any = Compression.none
    gradient_predivide_factor: float = 1.0
    groups: int | Sequence[Sequence[str]] | None = None
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if isinstance(self.groups, int) and (isinstance(self.groups, bool) or self.groups <= 0):
            raise ValueError("groups should be a positive integer or a list of lists of names of leaves.")

    def __call__(self, gradients: Any) -> Any:
        """The same tree, reduced. All leaves travel in one call, or in one for each of the groups."""
        leaves, structure = jax.tree_util.tree_flatten(gradients)
        # Integers have gradients without elements.
        moving = [i for i, leaf in enumerate(leaves) if getattr(leaf, "dtype", None) != jax.dtypes.float0]
        groups = self._groups(moving, gradients)
        base, parts = self.name, [(group, self.compression) for group in groups]
        settings = settings_of(self.compression, Compression.none)
        if settings is not None:
            base = name_apart(self.name, (leaves[i].shape for i in moving))
            parts = self._parted(groups, gradients, settings)
        for number, (group, compression) in enumerate(parts):
            name = base if len(parts) == 1 else f"{base}.{number}"
            for i, leaf in zip(group, self._reduced([leaves[i] for i in group], name, compression), strict=True):
                leaves[i] = leaf
        return jax.tree_util.tree_unflatten(structure, leaves)

    def _parted(self, groups: list[list[int]], gradients: Any, settings: Settings) -> list[tuple[list[int], Any]]:
        """The groups, each in as many parts as the engine has ways to compress its leaves."""
        paths = jax.tree_util.tree_flatten_with_path(gradients)[0]
        _constants.used("how fast links are")
        parts: list[tuple[list[int], Any]] = []
        for group in groups:
            by_spec: dict[str | None, list[int]] = {}
            for i in group:
                path, leaf = paths[i]
                is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
                nbytes = leaf.size * leaf.dtype.itemsize
                spec = settings(jax.tree_util.keystr(path), nbytes) if is_float else None
                by_spec.setdefault(spec, []).append(i)
            parts += [(part, Compression.none if spec is None else of_spec(spec)) for spec, part in by_spec.items()]
        return parts

    def _reduced(self, leaves: list[Any], name: str, compression: Any) -> list[Any]:
        factor = self.gradient_predivide_factor
        scales: dict[str, Any] = {"prescale_factor": 1.0 / factor, "postscale_factor": factor} if factor != 1.0 else {}
        options: dict[str, Any] = {
            "name": name,
            "op": self.op,
            "compression": compression,
            "process_set": self.process_set,
        }
        return allreduce(leaves, **options, **scales)

    def _groups(self, moving: list[int], gradients: Any) -> list[list[int]]:
        if self.groups is None:
            return [moving] if moving else []
        if isinstance(self.groups, int):
            return [group for group in split_list(moving, min(self.groups, max(len(moving), 1))) if group]
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(gradients)[0]]
        group_of = {name: number for number, group in enumerate(self.groups) for name in group}
        unknown = group_of.keys() - set(names)
        if unknown:
            raise ValueError(f"groups has {sorted(unknown)}, but the leaves are {names}.")
        groups: dict[Any, list[int]] = {}
        for i in moving:
            groups.setdefault(group_of.get(names[i], f"alone {i}"), []).append(i)
        return list(groups.values())
