"""The operations of `corro.jax`. Each takes an array or any pytree of them: all leaves travel in one call.

Outside of `jit` they are done at once. In a traced function they become part of its program, in which they can be
differentiated (to any order, forwards and backwards), batched by `vmap`, looped over by `scan` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import corro.numpy as _numpy
from corro import _native
from corro._errors import HorovodInternalError
from corro._front import arguments, waiting
from corro._front.arguments import Adasum, Average, Max, Min, Product, Sum
from corro._front.engine_compression import is_for_engine, setting_for
from corro._front.process_sets import ProcessSet, global_process_set
from corro.jax import _constants
from corro.jax._eager import collective, set_number
from corro.jax._versions import trace_state_clean
from corro.jax.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]

Tree = TypeVar("Tree")


def _leaves(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return [jnp.asarray(leaf) for leaf in leaves], structure


def allreduce(
    tensor: Tree,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tree:
    """The average over all ranks, or what `op` asks for: `Sum`, `Min`, `Max`, `Product`, `Adasum`.

    `tensor` is an array or a pytree of arrays, which then travel together. Values are multiplied by `prescale_factor` before
    and by `postscale_factor` after. Differentiable, but for Adasum.

    Example:
        >>> hvd.allreduce(jnp.arange(3.0) * hvd.rank(), op=hvd.Sum)
        Array([0., 1., 2.], dtype=float32)
        >>> jax.jit(hvd.allreduce)({"loss": jnp.float32(2 * hvd.rank()), "correct": jnp.ones(2)})
        {'correct': Array([1., 1.], dtype=float32), 'loss': Array(1., dtype=float32)}
    """
    op = arguments.reduction(op, average, process_set)
    leaves, structure = _leaves(tensor)
    scales = {"prescale": prescale_factor, "postscale": postscale_factor}
    if is_for_engine(compression):
        whole = _compressed(leaves, name, compression, process_set, {"op": op, **scales})
        return jax.tree_util.tree_unflatten(structure, whole)
    packed = [compression.compress(leaf) for leaf in leaves]
    for leaf, _ in packed:
        _check_reducible(leaf, op)
    reduced = collective("allreduce", [leaf for leaf, _ in packed], name, process_set, op=op, **scales)
    whole = [compression.decompress(leaf, context) for leaf, (_, context) in zip(reduced, packed, strict=True)]
    return jax.tree_util.tree_unflatten(structure, whole)


def _compressed(
    leaves: list[Any], name: str | None, compression: Any, process_set: ProcessSet, numbers: dict[str, Any]
) -> list[Any]:
    """Leaves that the engine compresses; those that are no floating-point numbers go as they are, in a call of their own."""
    floats = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    others = [i for i in range(len(leaves)) if i not in set(floats)]
    nbytes = sum(leaves[i].size * leaves[i].dtype.itemsize for i in floats)
    spec = setting_for(compression, name, nbytes) if floats else None
    _constants.used("how fast links are")
    results = list(leaves)
    for places, how, called in ((floats, spec or "", name), (others, "", name and f"{name}.others")):
        for i in places:
            _check_reducible(leaves[i], numbers["op"])
        reduced = collective("allreduce", [leaves[i] for i in places], called, process_set, compression=how, **numbers)
        for i, leaf in zip(places, reduced, strict=True):
            results[i] = leaf
    return results


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allreduce` of several arrays as one operation: none is ready before all are. Raises `ValueError` for an empty list.

    Example:
        >>> hvd.grouped_allreduce([jnp.ones(1), jnp.ones(2)], op=hvd.Sum)
        [Array([2.], dtype=float32), Array([2., 2.], dtype=float32)]
    """
    tensors = list(arguments.non_empty(tensors))
    scales = (prescale_factor, postscale_factor)
    return allreduce(tensors, average, name, compression, op, *scales, process_set)


def _check_reducible(array: Any, op: int) -> None:
    dtype = array.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        if op not in (Sum, Average):
            raise TypeError(
                f"{dtype} numbers have no {arguments.OP_NAMES[op]}: allreduce takes Sum and Average of them."
            )
        return
    if dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"allreduce of {dtype} is not supported: sums of so few bits are of little use. Reduce as bfloat16: "
            f"hvd.allreduce(x.astype(jnp.bfloat16)).astype(x.dtype). Other operations take {dtype} as it is."
        )
    if op == Adasum and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"Adasum combines floating-point numbers, not {dtype}.")


def broadcast(
    tensor: Tree, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tree:
    """The array, or the pytree of arrays, of rank `root_rank`, on every rank. All give the same shapes and dtypes.

    Differentiable: what flows back is added up, and goes to the root.

    Example:
        >>> hvd.broadcast(jnp.array([hvd.rank()]), root_rank=1)
        Array([1], dtype=int32)
    """
    leaves, structure = _leaves(tensor)
    return jax.tree_util.tree_unflatten(structure, collective("broadcast", leaves, name, process_set, root=root_rank))


def allgather(
    tensor: Tree,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    rows: Sequence[int] | None = None,
) -> Tree:
    """The arrays of all ranks, one behind the other along the first dimension, in rank order. Differentiable.

    Outside of `jit` ranks may bring different numbers of rows. In compiled code shapes are constants, so there all bring
    equally many, unless `rows` says how many each rank brings.

    Example:
        >>> hvd.allgather(jnp.array([hvd.rank()]))
        Array([0, 1], dtype=int32)
        >>> mine = jnp.full((hvd.rank() + 1,), hvd.rank())
        >>> jax.jit(lambda x: hvd.allgather(x, rows=[1, 2]))(mine)
        Array([0, 1, 1], dtype=int32)
    """
    leaves, structure = _leaves(tensor)
    for leaf in leaves:
        arguments.require_rows("allgather", leaf.shape)
    if trace_state_clean() and rows is None:
        whole = [_gathered(leaf, _numbered(name, i), process_set) for i, leaf in enumerate(leaves)]
    else:
        whole = _gathered_in_program(leaves, name, process_set, rows)
    return jax.tree_util.tree_unflatten(structure, whole)


def _numbered(name: str | None, i: int) -> str | None:
    return name if name is None or i == 0 else f"{name}.{i}"


def _gathered(array: Any, name: str | None, process_set: ProcessSet) -> Any:
    """Of as many rows as the ranks bring: only the engine knows how many."""
    set_number(process_set)
    return _from_numpy(array, _numpy.allgather(_bytes_of(array), name=name, process_set=process_set))


def _bytes_of(array: Any) -> Any:
    """An array as numpy sees it, in numbers that the engine knows."""
    return _numpy_view(jax.device_get(array))


def _numpy_view(array: Any) -> Any:
    if array.dtype.kind in "?biuf" and array.dtype.isbuiltin == 1:
        return array
    if array.dtype.kind == "c":
        return array.view(array.real.dtype).reshape(*array.shape, 2)
    return array.view({1: "uint8", 2: "uint16"}[array.dtype.itemsize])


def _from_numpy(like: Any, array: Any) -> Any:
    if array.dtype != like.dtype:
        shape = array.shape[:-1] if jnp.issubdtype(like.dtype, jnp.complexfloating) else array.shape
        array = array.reshape(-1).view(like.dtype).reshape(shape)
    return jax.device_put(array, next(iter(like.devices())))


def _gathered_in_program(
    leaves: list[Any], name: Any, process_set: ProcessSet, rows: Sequence[int] | None
) -> list[Any]:
    size = arguments.set_size(process_set)
    _constants.used("the number of ranks that an allgather gathers from")
    if rows is not None and len(rows) != size:
        raise ValueError(f"rows must say how many each of {size} ranks brings, but says {list(rows)}.")
    place = process_set.rank() or 0
    backs = [list(rows) if rows is not None else [leaf.shape[0]] * size for leaf in leaves]
    for leaf, back in zip(leaves, backs, strict=True):
        if back[place] != leaf.shape[0]:
            raise ValueError(f"rows says that this rank brings {back[place]} rows, but the array has {leaf.shape[0]}.")
    return collective("allgather", leaves, name, process_set, rows=[sum(back) for back in backs], back=backs)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of several arrays.

    Example:
        >>> hvd.grouped_allgather([jnp.array([hvd.rank()]), jnp.array([7])])
        [Array([0, 1], dtype=int32), Array([7, 7], dtype=int32)]
    """
    return allgather(list(arguments.non_empty(tensors)), name, process_set)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    received_splits: Sequence[int] | None = None,
) -> Any:
    """Sends a block of rows to each rank, and gives what all ranks sent here, in rank order. Differentiable.

    `splits` says how many rows go to each rank; then the result is a pair: the rows, and how many came from each rank.
    Without it all ranks get equally many. In compiled code shapes are constants, so there `received_splits` must say what
    comes, if there are `splits`.

    Example:
        >>> hvd.alltoall(jnp.array([hvd.rank()] * 2))
        Array([0, 1], dtype=int32)
        >>> hvd.alltoall(jnp.array([hvd.rank()] * 3), splits=[1, 2])[1]
        Array([1, 1], dtype=int32)
    """
    array = jnp.asarray(tensor)
    if not _known(splits):
        raise ValueError(
            "in compiled code the splits of an alltoall must be Python numbers, not values that the program computes."
        )
    given = np.asarray([] if splits is None else splits)
    checked = arguments.rows_to_send(array.shape, given.ravel().tolist(), given.ndim, process_set)
    if trace_state_clean() and received_splits is None:
        numbers = _numpy.alltoall(_bytes_of(array), splits=checked or None, name=name, process_set=process_set)
        rows, received = numbers if checked else (numbers, None)
        rows = _from_numpy(array, rows)
        return rows if received is None else (rows, jnp.asarray(received, jnp.int32))
    _constants.used("the number of ranks of an alltoall")
    size = arguments.set_size(process_set)
    if checked and received_splits is None:
        raise ValueError(
            "alltoall with splits in compiled code needs received_splits: XLA must know how many rows come from each rank. "
            "Call it outside of jit, or give both."
        )
    back = [int(split) for split in received_splits] if received_splits is not None else [array.shape[0] // size] * size
    sent = array[: sum(checked)] if checked else array
    options: dict[str, Any] = {"splits": checked, "rows": [sum(back)], "back": [back]}
    (output,) = collective("alltoall", [sent], name, process_set, **options)
    return (output, jnp.asarray(back, jnp.int32)) if checked else output


def _known(value: Any) -> bool:
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(value))


def reducescatter(
    tensor: Tree,
    op: int = Average,
    name: str | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tree:
    """This rank's rows of the average, or the sum, over all ranks. Rows are dealt in rank order; the first get one more.

    Differentiable.

    Example:
        >>> hvd.reducescatter(jnp.arange(4.0), op=hvd.Sum) * (1 - hvd.rank())
        Array([0., 2.], dtype=float32)
    """
    op = arguments.scatter_reduction(op)
    leaves, structure = _leaves(tensor)
    for leaf in leaves:
        arguments.require_rows("reducescatter", leaf.shape)
        _check_reducible(leaf, op)
    set_number(process_set)
    _constants.used("the number of ranks of a reducescatter")
    packed = [compression.compress(leaf) for leaf in leaves]
    place, size = process_set.rank() or 0, arguments.set_size(process_set)
    dealt = [arguments.rows_per_rank(leaf.shape[0], size) for leaf, _ in packed]
    options: dict[str, Any] = {"op": op, "prescale": prescale_factor, "postscale": postscale_factor}
    options |= {"rows": [rows[place] for rows in dealt], "back": dealt}
    own = collective("reducescatter", [leaf for leaf, _ in packed], name, process_set, **options)
    scattered = [compression.decompress(leaf, context) for leaf, (_, context) in zip(own, packed, strict=True)]
    return jax.tree_util.tree_unflatten(structure, scattered)


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of several arrays.

    Example:
        >>> [part.shape for part in hvd.grouped_reducescatter([jnp.ones(2), jnp.ones((4, 3))])]
        [(1,), (2, 3)]
    """
    tensors = list(arguments.non_empty(tensors))
    return reducescatter(tensors, op, name, compression, process_set, prescale_factor, postscale_factor)


def barrier(tree: Tree = None, process_set: ProcessSet = global_process_set) -> Tree:  # type: ignore[assignment]
    """Waits until all ranks of the set are here, and gives back what it was given.

    In compiled code only results decide the order: what must come after the barrier has to use what it gives back.

    Example:
        >>> hvd.barrier()
        >>> jax.jit(lambda x: hvd.barrier(x) + 1)(jnp.zeros(2))
        Array([1., 1.], dtype=float32)
    """
    if trace_state_clean():
        jax.block_until_ready(tree)
        waiting.barrier(process_set)
        return tree
    leaves, structure = _leaves(tree)
    if not leaves:
        raise ValueError(
            "in compiled code write x = hvd.barrier(x), and use x: JAX leaves out a barrier whose result is not used."
        )
    return jax.tree_util.tree_unflatten(structure, collective("barrier", leaves, None, process_set))


def join() -> int:
    """This rank has no more data: until all have joined it takes part with zeros. Gives the rank that joined last.

    Not in compiled code: how long it takes part depends on the others.

    Example:
        >>> last = hvd.join()  # when a rank has fewer batches than the others
        >>> 0 <= last < hvd.size()
        True
    """
    if not trace_state_clean():
        raise ValueError("hvd.join cannot be compiled: call it outside of jit, after the last batch.")
    return _native.join()
