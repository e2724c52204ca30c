"""Where JAX keeps what this front needs: it has moved from version to version. The only file that looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core as extend_core
from jax.interpreters import ad, mlir

try:  # since JAX 0.5
    from jax import ffi
except ImportError:
    from jax.extend import ffi  # type: ignore[attr-defined, no-redef]

try:
    from jax._src.core import trace_state_clean
except ImportError:  # in case it becomes public
    from jax.core import trace_state_clean  # type: ignore[attr-defined, no-redef]

_VERSION = tuple(int(part) for part in jax.__version__.split(".")[:2])

Primitive = extend_core.Primitive
Jaxpr, ClosedJaxpr = extend_core.Jaxpr, extend_core.ClosedJaxpr

__all__ = [
    "ClosedJaxpr",
    "Jaxpr",
    "Primitive",
    "allow_in_shard_map",
    "differs_along",
    "ffi",
    "foreign_call",
    "future_place",
    "lower_fun",
    "lowering_of",
    "primitives_with_programs",
    "register_lowering",
    "trace_state_clean",
    "zero_tangent",
]

# Primitives whose parameters hold programs of their own, as they are called.
_WITH_PROGRAMS = {
    "checkpoint",
    "closed_call",
    "cond",
    "core_call",
    "custom_jvp_call",
    "custom_lin",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "jit",
    "pjit",
    "remat",
    "remat2",
    "scan",
    "shard_map",
    "while",
}


def primitives_with_programs() -> list[Any]:
    """The primitives that have programs among their parameters, and that are lowered in one way on all platforms."""
    import jax.experimental.shard_map  # noqa: F401 # registers its primitive, where that is not done anyway

    return [primitive for primitive in list(mlir._lowerings) if primitive.name in _WITH_PROGRAMS]


def lowering_of(primitive: Any) -> Callable[..., Any]:
    """The rule that writes a primitive into an XLA program."""
    entry: Any = mlir._lowerings[primitive]
    return getattr(entry, "rule", entry)


def register_lowering(primitive: Any, rule: Callable[..., Any], platform: str | None = None) -> None:
    """Has `rule` called for each use of the primitive in a program: equal uses do not share what it wrote."""
    try:
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)
    except TypeError:  # before JAX 0.7 nothing was shared
        mlir.register_lowering(primitive, rule, platform=platform)


def lower_fun(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that writes into a program what `function` does."""
    return mlir.lower_fun(function, multiple_results=True)


def future_place() -> int | None:
    """The place of `XLA_FFI_Future_Create` among the functions of XLA's API, by the header that comes with jaxlib."""
    header = Path(ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        fields = re.findall(r"^\s*_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", header.read_text(), re.MULTILINE)
    except OSError:
        return None
    names = ["XLA_FFI_Future_Create", "XLA_FFI_Future_SetAvailable", "XLA_FFI_Future_SetError"]
    if fields[:1] != ["XLA_FFI_Error_Create"] or names[0] not in fields:
        return None
    place = fields.index(names[0])
    return place if fields[place : place + 3] == names else None


def differs_along(aval: Any) -> frozenset[Any]:
    """The axes of a `shard_map` along which a value is not the same on all devices, where JAX knows."""
    axes = getattr(aval, "manual_axis_type", None)  # since JAX 0.10
    return getattr(aval, "vma", frozenset()) if axes is None else axes.varying


def foreign_call(target: str, ctx: Any, arrays: Sequence[Any], call: str, has_side_effect: bool, on_gpu: bool) -> Any:
    """Writes a call into a program. What it is to do is one text."""
    if on_gpu or _VERSION >= (0, 8):
        return ffi.ffi_lowering(target, has_side_effect=has_side_effect)(ctx, *arrays, call=call)
    # The compiler for CPUs reads attributes as what they are not, in calls of what a product of matrices has gone into,
    # and ends the process. So the text is an argument, the first.
    text = np.frombuffer(call.encode(), np.uint8)
    spelled = ctx.replace(avals_in=[jax.core.ShapedArray(text.shape, text.dtype), *ctx.avals_in])
    words = mlir.ir_constant(text)
    return ffi.ffi_lowering(target, has_side_effect=has_side_effect)(spelled, words, *arrays)


def zero_tangent(value: Any) -> Any:
    """The tangent of something that does not change."""
    if hasattr(ad.Zero, "from_primal_value"):
        return ad.Zero.from_primal_value(value)
    return ad.Zero(jax.typeof(value).to_tangent_aval())  # since JAX 0.8


def allow_in_shard_map(primitive: Any) -> None:
    """Before JAX 0.6, `shard_map` had to be told what a primitive does to values that are equal on all devices."""
    if _VERSION >= (0, 6):
        return
    import jax.experimental.shard_map

    shard_map: Any = jax.experimental.shard_map
    shard_map.register_standard_check(primitive)
    shard_map.register_standard_rewrite(primitive)
