"""The one primitive behind all collectives: how JAX traces, differentiates, batches and compiles it.

It has no effect that JAX knows of: with one, every call of a compiled function would take JAX's slow path (100 us and more).
A collective whose result nobody uses is therefore dropped, on all ranks alike. XLA is told that a call has side effects, so
that it neither drops nor merges what is left.

Parameters of the primitive:

| parameter | meaning |
| --- | --- |
| `kind` | allreduce, reduce (an allreduce whose result only the root gets; others get zeros), broadcast, allgather, ... |
| `name` | by which ranks find each other, or None |
| `set_id`, `op`, `prescale`, `postscale`, `root`, `splits` | as for the engine |
| `compression` | how the engine compresses what goes between hosts; "" for not at all |
| `rows` | of each result, where that has other rows than its argument |
| `back` | for what flows back through each array: how many rows it has of (or for) each rank |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from corro import _native
from corro._front.arguments import Adasum, Average, Max, Min, Product, Sum, rows_per_rank
from corro.jax import _constants, _sites, _versions
from corro.jax._versions import ffi

_TARGET = "corro_collective"

collective_p = _versions.Primitive("corro_collective")
collective_p.multiple_results = True

# Kinds whose results have the shapes of their arguments.
_SAME_SHAPE = ("allreduce", "reduce", "broadcast", "barrier")


def collective(
    kind: str,
    arrays: Sequence[Any],
    name: str | None,
    set_id: int,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: Sequence[int] = (),
    rows: Sequence[int] = (),
    back: Sequence[Sequence[int]] = (),
    compression: str = "",
) -> list[Any]:
    """One call for all of the arrays."""
    return collective_p.bind(
        *arrays,
        kind=kind,
        name=name,
        set_id=int(set_id),
        op=int(op),
        prescale=float(prescale),
        postscale=float(postscale),
        root=int(root),
        splits=tuple(int(split) for split in splits),
        rows=tuple(int(row) for row in rows),
        back=tuple(tuple(int(row) for row in each) for each in back),
        compression=compression,
    )


@functools.lru_cache(maxsize=4096)
def _compiled(params: tuple[tuple[str, Any], ...]) -> Any:
    named = dict(params)

    def call(*arrays: Any) -> list[Any]:
        return collective_p.bind(*arrays, **named)

    call.__name__ = named["kind"]
    return jax.jit(call)


@collective_p.def_impl
def _run(*arrays: Any, **params: Any) -> list[Any]:
    return _compiled(tuple(sorted(params.items())))(*arrays)


@collective_p.def_abstract_eval
def _shapes(*avals: Any, kind: str, rows: tuple[int, ...], **_params: Any) -> list[Any]:
    for aval in avals:
        if axes := _versions.differs_along(aval):
            raise ValueError(
                f"{kind} in a shard_map needs values that are the same on all devices of this process, but these differ "
                f"along {sorted(axes)}: reduce them there first, with jax.lax.psum or jax.lax.pmean."
            )
    if kind in _SAME_SHAPE:
        return [aval.update(weak_type=False) for aval in avals]
    return [aval.update(shape=(own, *aval.shape[1:]), weak_type=False) for aval, own in zip(avals, rows, strict=True)]


# --- writing it into a program


def _lower(
    ctx: Any, *arrays: Any, on_gpu: bool, kind: str, name: str | None, rows: Any, back: Any, **params: Any
) -> Any:
    module = ctx.module_context
    fields = [kind, *(params[key] for key in ("set_id", "op", "prescale", "postscale", "root"))]
    fields += [_local_devices(module.axis_context), ",".join(map(str, params["splits"])), params["compression"]]
    fields += [_site(module, kind if len(arrays) == 1 else f"grouped_{kind}", name)]
    # On several devices each makes the call, with all values. XLA wants no side effects of what all devices do; names are
    # enough there to keep calls from being merged.
    alone = _devices(module.axis_context) == 1
    return _versions.foreign_call(_TARGET, ctx, arrays, ";".join(map(str, fields)), alone, on_gpu)


def _lower_elsewhere(ctx: Any, *arrays: Any, **params: Any) -> Any:
    """On devices that the engine is not called from: by way of the host, with the same name."""
    kind, name = params["kind"], params["name"]
    site = _site(ctx.module_context, kind if len(arrays) == 1 else f"grouped_{kind}", name)
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_out]

    def on_host(*values: Any) -> Any:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return jax.device_get(collective_p.bind(*map(jnp.asarray, values), **{**params, "name": site}))

    def call(*values: Any) -> Any:
        return jax.pure_callback(on_host, shapes, *values)

    return _versions.lower_fun(call)(ctx, *arrays)


def _site(module: Any, kind: str, name: str | None) -> str:
    """What a use of a collective is called: no other in the same program is, and on all ranks this one is."""
    program = module.module.operation.attributes["sym_name"].value
    base = f"{kind}.{name}" if name else f"{kind}.{program}"
    # JAX keeps this table for as long as it writes the program, and asks only for keys of its own.
    counts = module.cached_primitive_lowerings.setdefault(collective_p, {})
    count = counts[base] = counts.get(base, -1) + 1
    return base if name and not count else f"{base}.{count}"


def _devices(axis_context: Any) -> int:
    """On how many devices the program runs, those of other processes included (`jax.distributed`)."""
    mesh = getattr(axis_context, "mesh", None)
    count: int = getattr(axis_context, "num_devices", None) or getattr(mesh, "size", None) or 1
    return count


def _local_devices(axis_context: Any) -> int:
    """On how many devices of this process the program runs."""
    mesh = getattr(axis_context, "mesh", None)
    devices = getattr(axis_context, "device_assignment", None)
    if devices is None and mesh is not None and hasattr(mesh, "devices"):
        devices = mesh.devices.flat
    if devices is None:
        return _devices(axis_context)
    return max(sum(device.process_index == jax.process_index() for device in devices), 1)


# --- derivatives

# A collective that adds, or that only moves, is linear: its tangent is the same collective of the tangents.


def _jvp(primals: Any, tangents: Any, *, kind: str, op: int, name: str | None, **params: Any) -> Any:
    results = collective_p.bind(*primals, kind=kind, op=op, name=name, **params)
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    outward: list[Any] = [_versions.zero_tangent(result) for result in results]
    if not moving:
        return results, outward
    chosen = [tangents[i] for i in moving]
    named = name and f"{name}.tangent"
    params["compression"] = ""  # a derivative is not what a compression gets better with time
    if kind in ("allreduce", "reducescatter") and op not in (Sum, Average):
        values = [primals[i] for i in moving], [results[i] for i in moving]
        chosen = _nonlinear(chosen, *values, op, named, params)
    else:
        own = {key: tuple(params[key][i] for i in moving) if params[key] else () for key in ("rows", "back")}
        chosen = collective_p.bind(*chosen, kind=kind, op=op, name=named, **{**params, **own})
    for i, tangent in zip(moving, chosen, strict=True):
        outward[i] = tangent
    return results, outward


def _nonlinear(tangents: Any, inputs: Any, results: Any, op: int, name: str | None, params: Any) -> list[Any]:
    """The tangents of a minimum, a maximum or a product over the ranks."""
    if op == Adasum:
        raise NotImplementedError(
            "allreduce with op=hvd.Adasum has no derivative. Reduce gradients with it, not losses."
        )
    if params["prescale"] != 1.0 or params["postscale"] != 1.0:
        raise NotImplementedError(
            "op=hvd.Min, hvd.Max and hvd.Product have no derivative when scale factors are given."
        )
    set_id = params["set_id"]

    def add(arrays: Any, what: str) -> list[Any]:
        return collective("allreduce", arrays, name and f"{name}.{what}", set_id)

    if op in (Min, Max):
        # Ranks that share the extreme share its tangent.
        hits = [(x == y).astype(t.dtype) for x, y, t in zip(inputs, results, tangents, strict=True)]
        sharers = add(hits, "sharers")
        return add([t * h / n for t, h, n in zip(tangents, hits, sharers, strict=True)], "sum")
    assert op == Product
    zeros = add([(x == 0).astype(t.dtype) for x, t in zip(inputs, tangents, strict=True)], "zeros")
    others = [jnp.where(x == 0, jnp.ones_like(x), x) for x in inputs]
    whole = collective("allreduce", others, name and f"{name}.product", set_id, Product)
    # The product of the other ranks' values; more zeros than this rank's own make it zero.
    rest = [
        jnp.where(z - (x == 0) > 0, jnp.zeros_like(x), p / o)
        for x, z, o, p in zip(inputs, zeros, others, whole, strict=True)
    ]
    return add([t * r for t, r in zip(tangents, rest, strict=True)], "sum")


def _transpose(cotangents: Any, *arguments: Any, kind: str, name: str | None, **params: Any) -> Any:
    """What flows back: to each rank, what its values have brought to all of them."""
    coming = [i for i, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    backward: list[Any] = [
        ad.Zero(argument.aval) if ad.is_undefined_primal(argument) else None for argument in arguments
    ]
    if not coming:
        return backward
    chosen = [ad.instantiate_zeros(cotangents[i]) for i in coming]
    params["back"] = tuple(params["back"][i] for i in coming) if params["back"] else ()
    shapes = [arguments[i].aval.shape for i in coming]
    for i, value in zip(coming, _back(chosen, shapes, kind, name and f"{name}.gradient", params), strict=True):
        backward[i] = value
    return backward


def _back(arrays: list[Any], shapes: list[Any], kind: str, name: str | None, params: Any) -> list[Any]:
    set_id = params["set_id"]
    # The factor that was first is last on the way back.
    scales = {"prescale": params["postscale"], "postscale": params["prescale"]}
    if kind in _SAME_SHAPE:
        opposite = {"broadcast": "reduce", "reduce": "broadcast"}.get(kind, kind)
        return collective(opposite, arrays, name, set_id, params["op"], root=params["root"], **scales)
    own = [shape[0] for shape in shapes]
    back = params["back"]
    if kind == "allgather":
        return _scattered(arrays, own, name, params)
    if kind == "reducescatter":
        whole = collective("allgather", arrays, name, set_id, rows=own, back=back)
        factor = params["prescale"] * params["postscale"]
        if params["op"] == Average:
            factor /= len(back[0])
        return whole if factor == 1.0 else [array * jnp.asarray(factor, array.dtype) for array in whole]
    assert kind == "alltoall"
    sent = params["splits"] or tuple(rows // len(each) for rows, each in zip(own, back, strict=True) for _ in each)
    (returned,) = collective("alltoall", arrays, name, set_id, splits=back[0], rows=[sum(sent)], back=[sent])
    return [returned]


def _scattered(arrays: list[Any], own: list[int], name: str | None, params: Any) -> list[Any]:
    """This rank's rows of the sum, of gradients that are whole on all ranks."""
    back, set_id = params["back"], params["set_id"]
    if all(list(each) == rows_per_rank(sum(each), len(each)) for each in back):
        return collective("reducescatter", arrays, name, set_id, Sum, rows=own, back=back)
    whole = collective("allreduce", arrays, name, set_id, Sum)
    _constants.used("which rows of an allgather are this rank's")
    place = (_native.process_set(set_id) or []).index(_native.rank())
    starts = [sum(each[:place]) for each in back]
    return [array[start : start + rows] for array, start, rows in zip(whole, starts, own, strict=True)]


# --- vmap


def _batch(arrays: Any, dims: Any, *, kind: str, op: int, rows: Any, **params: Any) -> Any:
    """The examples of a batch travel together. Where rows are dealt out they are the first dimension, and stay it."""
    if op == Adasum and kind == "allreduce":
        raise NotImplementedError("allreduce with op=hvd.Adasum under vmap would combine the batch as one vector.")
    same = kind in _SAME_SHAPE
    moved, places = [], []
    for array, dim in zip(arrays, dims, strict=True):
        if dim is None or same:
            moved.append(array)
            places.append(dim)
        else:
            moved.append(jnp.moveaxis(array, dim, 1))
            places.append(1)
    return collective_p.bind(*moved, kind=kind, op=op, rows=rows, **params), places


def _register() -> None:
    ad.primitive_jvps[collective_p] = _jvp
    ad.primitive_transposes[collective_p] = _transpose
    batching.primitive_batchers[collective_p] = _batch
    _versions.register_lowering(collective_p, _lower_elsewhere)
    on_host, on_gpu = _native.jax_handlers(_versions.future_place())
    for platform, target, handler in (("cpu", "cpu", on_host), ("cuda", "CUDA", on_gpu)):
        rule = functools.partial(_lower, on_gpu=handler is on_gpu)
        _versions.register_lowering(collective_p, rule, platform=platform)
        ffi.register_ffi_target(_TARGET, handler, platform=target)
    _versions.allow_in_shard_map(collective_p)
    _sites.keep_apart(collective_p)


_register()
