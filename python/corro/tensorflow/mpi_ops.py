"""The operations of `corro.tensorflow`: one TensorFlow node each, with their gradients in `_gradients`.

In a graph, ranks find each other's tensors by the names of the nodes; eagerly, by the given names or by counting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from corro._errors import HorovodInternalError, UnregisteredProcessSet
from corro._front import arguments, basics
from corro._front.arguments import Adasum, Average, Max, Min, Product, Sum
from corro._front.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from corro._front.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_by_id,
    remove_process_set,
)
from corro.common.basics import HorovodBasics
from corro.common.util import num_rank_is_power_2
from corro.tensorflow import _xla
from corro.tensorflow._library import library
from corro.tensorflow.util import InvalidArgument, as_it_is, is_keras_variable

# A process set, its number, or a scalar int32 tensor with the number, which is read when the operation runs.
AnySet = Any

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


# Kept for scripts that reach for the object behind the functions above.
_basics = HorovodBasics()


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduce op that `op` and its predecessor `average` ask for. Raises `ValueError` if both are given.

    Example:
        >>> hvd.handle_average_backwards_compatibility(op=hvd.Sum, average=None) == hvd.Sum
        True
    """
    return arguments.reduction(op, average, global_process_set)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether the number is a power of two. Adasum does not need that here.

    Example:
        >>> hvd.check_num_rank_power_of_2(4), hvd.check_num_rank_power_of_2(6)
        (True, False)
    """
    return num_rank_is_power_2(num_rank)


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether Corro found a GPU. Operations can be placed on it; TensorFlow copies their tensors through the host's memory.

    Example:
        >>> hvd.gpu_available()
        False
    """
    return bool(basics.cuda_built() or basics.rocm_built())


def _normalize_name(name: str) -> str:
    """`name` as TensorFlow allows names of nodes."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _where(process_set: AnySet) -> dict[str, Any]:
    """The arguments of a node that say which process set is meant."""
    if isinstance(process_set, ProcessSet):
        if process_set.process_set_id is None:
            raise InvalidArgument(None, None, f"{process_set} does not exist, or has not been registered.")
        return {"process_set": [], "process_set_id": process_set.process_set_id}
    if (tf.is_tensor(process_set) or isinstance(process_set, tf.Variable)) and not tf.executing_eagerly():
        return {"process_set": [tf.cast(process_set, tf.int32)]}
    return {"process_set": [], "process_set_id": _registered_number(int(process_set))}


def _registered_number(number: int) -> int:
    """The number of a process set, refused here if there is no such set: a kernel could only say so later."""
    # Before `init` a graph may be built for sets that are yet to come.
    if number != 0 and basics.is_initialized():
        try:
            process_set_by_id(number)
        except UnregisteredProcessSet as error:
            raise InvalidArgument(None, None, str(error)) from None
    return number


def _called(kind: str, name: str | None, tensors: Sequence[Any], ignore_name_scope: bool) -> dict[str, Any]:
    """The arguments of a node that say how its tensor is called."""
    if tf.executing_eagerly():
        return {"eager": True, "tensor_name": name or ""}
    if name is None:
        first, last = tensors[0].name, tensors[-1].name
        name = f"{kind}_{_normalize_name(first)}"
        if last != first:
            name += f"_{_normalize_name(last)}"
    return {"name": _normalize_scopes(name), "ignore_name_scope": ignore_name_scope}


def _normalize_scopes(name: str) -> str:
    """A given name, which may have scopes, as TensorFlow allows it."""
    allowed = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"n{allowed}"


def _tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value.value if is_keras_variable(value) else value)


@as_it_is
def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
    compression: str = "",
) -> Any:
    """An allreduce of a dense tensor."""
    tensor = _tensor(tensor)
    if _xla.compiling():
        return _xla.allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, compression)
    return library.horovod_allreduce(
        tensor,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        **_where(process_set),
        **_called("HorovodAllreduce", name, [tensor], ignore_name_scope),
    )


@as_it_is
def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
    compression: str = "",
) -> list[Any]:
    """Allreduces of dense tensors of one dtype that complete together."""
    tensors = [_tensor(tensor) for tensor in tensors]
    if _xla.compiling():
        # Compiled code runs them one after the other anyway.
        return [
            _xla.allreduce(
                tensor, name and f"{name}_{i}", op, prescale_factor, postscale_factor, process_set, compression
            )
            for i, tensor in enumerate(tensors)
        ]
    return library.horovod_grouped_allreduce(
        tensors,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        **_where(process_set),
        **_called("HorovodGroupedAllreduce", name, tensors, ignore_name_scope),
    )


@as_it_is
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: AnySet = global_process_set
) -> Any:
    """The tensors of all ranks, one behind the other along the first dimension, in which they may differ. In rank order.

    Differentiable. `ignore_name_scope` leaves the name scope out of the name by which ranks find each other's tensors.

    Example:
        >>> hvd.allgather(tf.constant([hvd.rank()])).numpy()
        array([0, 1], dtype=int32)
    """
    tensor = _tensor(tensor)
    _xla.refuse("allgather")
    return library.horovod_allgather(
        tensor, **_where(process_set), **_called("HorovodAllgather", name, [tensor], ignore_name_scope)
    )


@as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
) -> list[Any]:
    """`allgather` of several tensors as one operation: none is ready before all are.

    Example:
        >>> [whole.numpy() for whole in hvd.grouped_allgather([tf.constant([hvd.rank()]), tf.constant([7])])]
        [array([0, 1], dtype=int32), array([7, 7], dtype=int32)]
    """
    if not tensors:
        return list(tensors)
    tensors = [_tensor(tensor) for tensor in tensors]
    _xla.refuse("grouped_allgather")
    return library.horovod_grouped_allgather(
        tensors, **_where(process_set), **_called("HorovodGroupedAllgather", name, tensors, ignore_name_scope)
    )


@as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
) -> Any:
    """The tensor of rank `root_rank`, on every rank. All give a tensor of the same shape and dtype. Differentiable.

    Example:
        >>> hvd.broadcast(tf.constant([hvd.rank()]), root_rank=1).numpy()
        array([1], dtype=int32)
    """
    tensor = _tensor(tensor)
    if _xla.compiling():
        return _xla.broadcast(tensor, root_rank, name, process_set)
    return library.horovod_broadcast(
        tensor,
        root_rank=root_rank,
        **_where(process_set),
        **_called("HorovodBroadcast", name, [tensor], ignore_name_scope),
    )


@as_it_is
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: AnySet = global_process_set
) -> list[Any]:
    """Gives the variables the values of `root_rank`, on every rank. Returns the new values.

    Example:
        >>> variable = tf.Variable([float(hvd.rank())])
        >>> new = hvd.broadcast_([variable], root_rank=1)
        >>> variable.numpy()
        array([1.], dtype=float32)
    """
    from corro.tensorflow.functions import tf_variable

    variables = [tf_variable(variable) for variable in variables]
    kinds = {isinstance(variable, tf.Variable) and hasattr(variable, "handle") for variable in variables}
    if len(kinds) > 1:
        raise ValueError("broadcast_ takes either resource variables only, or reference variables only.")
    names = [f"{name}_{i + 1}of{len(variables)}" if name else None for i in range(len(variables))]
    values = [
        broadcast(variable, root_rank, own, process_set=process_set)
        for variable, own in zip(variables, names, strict=True)
    ]
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


@as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
) -> Any:
    """Sends a block of rows to each rank, and gives what all ranks sent here, in rank order.

    `splits` says how many rows go to each rank; then the result is a pair: the rows, and how many came from each rank.
    Without it all ranks get equally many. Differentiable. Raises `ValueError` for splits that do not fit.

    Example:
        >>> hvd.alltoall(tf.constant([hvd.rank()] * 2)).numpy()
        array([0, 1], dtype=int32)
    """
    tensor = _tensor(tensor)
    try:
        rows = tf.convert_to_tensor([] if splits is None else splits, tf.int32)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(None, None, f"alltoall takes its splits as 32-bit integers: {error}") from error
    _xla.refuse("alltoall")
    output, received = library.horovod_alltoall(
        tensor, splits=rows, **_where(process_set), **_called("HorovodAlltoall", name, [tensor], ignore_name_scope)
    )
    return output if splits is None else (output, received)


@as_it_is
def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
) -> Any:
    """This rank's rows of what all ranks' tensors add up to."""
    tensor = _tensor(tensor)
    _xla.refuse("reducescatter")
    return library.horovod_reducescatter(
        tensor,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        **_where(process_set),
        **_called("HorovodReducescatter", name, [tensor], ignore_name_scope),
    )


@as_it_is
def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: AnySet = global_process_set,
) -> list[Any]:
    """Reducescatters that complete together."""
    tensors = [_tensor(tensor) for tensor in tensors]
    _xla.refuse("grouped_reducescatter")
    return library.horovod_grouped_reducescatter(
        tensors,
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        **_where(process_set),
        **_called("HorovodGroupedReducescatter", name, tensors, ignore_name_scope),
    )


@as_it_is
def join() -> Any:
    """This rank has no more data: it takes part in the others' allreduces with zeros until all have joined.

    Gives the rank that came last, as a tensor.

    Example:
        >>> last = hvd.join()
        >>> 0 <= int(last) < hvd.size()
        True
    """
    _xla.refuse("join")
    return library.horovod_join(eager=tf.executing_eagerly())


@as_it_is
def barrier(process_set: AnySet = global_process_set) -> Any:
    """Waits until all ranks of the set are here. In a graph, returns the operation that waits.

    Example:
        >>> _ = hvd.barrier()
    """
    _xla.refuse("barrier")
    return library.horovod_barrier(eager=tf.executing_eagerly(), **_where(process_set))


@as_it_is
def rank_op(name: str | None = None) -> Any:
    """`rank()` as a tensor, read when the graph runs, so that it follows an elastic change of the ranks.

    Example:
        >>> int(hvd.rank_op()) == hvd.rank()
        True
    """
    _xla.refuse("rank_op")
    return library.horovod_rank(name=name)


@as_it_is
def local_rank_op(name: str | None = None) -> Any:
    """`local_rank()` as a tensor, read when the graph runs.

    Example:
        >>> int(hvd.local_rank_op()) == hvd.local_rank()
        True
    """
    _xla.refuse("local_rank_op")
    return library.horovod_local_rank(name=name)


@as_it_is
def size_op(process_set_id: Any = 0, name: str | None = None) -> Any:
    """The number of ranks of a process set as a tensor, read when the graph runs.

    Example:
        >>> int(hvd.size_op())
        2
    """
    _xla.refuse("size_op")
    return library.horovod_size(name=name, **_where(process_set_id))


@as_it_is
def local_size_op(name: str | None = None) -> Any:
    """`local_size()` as a tensor, read when the graph runs.

    Example:
        >>> int(hvd.local_size_op())
        2
    """
    _xla.refuse("local_size_op")
    return library.horovod_local_size(name=name)


@as_it_is
def process_set_included_op(process_set_id: Any = 0, name: str | None = None) -> Any:
    """1 if this rank belongs to the process set when the graph runs, else 0.

    Example:
        >>> int(hvd.process_set_included_op(hvd.global_process_set.process_set_id))
        1
    """
    _xla.refuse("process_set_included_op")
    return library.horovod_process_set_included(name=name, **_where(process_set_id))
