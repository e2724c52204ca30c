"""`import corro.keras as hvd`: Horovod's Keras interface, for Keras 3 on TensorFlow, PyTorch and JAX.

Where TF_USE_LEGACY_KERAS=1 asks for the old Keras of the package `tf_keras`, it is for that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corro._front.arguments import Adasum, Average, Sum
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
from corro._front.engine_compression import compression_report, compression_state, load_compression_state
from corro._front.objects import allgather_object, broadcast_object
from corro._front.process_sets import ProcessSet, global_process_set
from corro._front.watching import log
from corro._keras import patches, saving
from corro._keras.backends import backend_of
from corro._keras.installed import is_keras2
from corro._keras.optimizer import Settings, distributed
from corro._keras.values import Values
from corro._keras.values import broadcast_variables as _broadcast_variables
from corro.keras import callbacks, elastic, layers
from corro.keras._which import keras as _keras

_backend = backend_of(_keras)
_values = Values(_keras, _backend.as_tensor if is_keras2(_keras) else _keras.ops.convert_to_tensor)
Compression = _backend.Compression
patches.patch_progress_bar(_keras)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "compression_report",
    "compression_state",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "layers",
    "load_compression_state",
    "load_model",
    "local_rank",
    "local_size",
    "log",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    mode: str = "allreduce",
    staleness: int | None = 0,
    servers: Any = None,
) -> Any:
    """The same optimizer, whose steps use the gradients of all ranks.

    It is an instance of a subclass of the optimizer's class, works in `model.compile` and in training loops of your own,
    and is saved as the optimizer it was made from. `op` is Average or Sum; `backward_passes_per_step` adds up as many passes
    before it reduces, and `average_aggregated_gradients` divides by their number; `groups` reduces gradients together;
    `compression` says what travels. The devices are accepted and not needed. Raises `ValueError` for options that contradict
    each other.

    `mode="ps"` has parameter servers do it. With `staleness=0` they average gradients. With a larger `staleness` ranks
    may be that many steps apart (None: any number), and servers own the parameters and run the optimizer, which must be
    SGD, Adam, AdamW or Adagrad; what it remembers is saved by `optimizer.store`. `servers` is as in `corro.ps.Store`.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss="mse")
        >>> loss = model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    """
    settings = Settings(
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        mode=mode,
        staleness=staleness,
        servers=servers,
    )
    return distributed(_keras, optimizer, settings)


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A `DistributedOptimizer` that leaves the weights of `local_layers` to each rank. Other arguments are the same.

    Example:
        >>> shared, own = keras.layers.Dense(4), keras.layers.Dense(1)
        >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[own])
    """
    settings = Settings(
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
    )
    return distributed(_keras, optimizer, settings)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Averages a number, array or tensor over all ranks. Gives a tensor of the backend.

    For another `op` say `average=None` too: as in Horovod, and unlike in `corro.tensorflow.keras`, the default is True. The
    input is multiplied by `prescale_factor`, the result by `postscale_factor`.

    Example:
        >>> float(hvd.allreduce(float(hvd.rank())))
        0.5
        >>> float(hvd.allreduce(1.0, average=None, op=hvd.Sum))
        2.0
    """
    if average and op is None:
        average, op = None, Average  # the default is no use of a deprecated argument
    return _values.allreduce(value, name, average, prescale_factor, postscale_factor, op, compression)


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one behind the other along the first dimension, in the order of ranks.

    Example:
        >>> hvd.allgather([hvd.rank()]).numpy()
        array([0, 1], dtype=int32)
    """
    return _values.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value that rank `root_rank` has. All give a number, array or tensor of the same shape.

    Example:
        >>> int(hvd.broadcast(hvd.rank(), root_rank=1))
        1
    """
    return _values.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces over all ranks and gives each its share of the rows. `op` is Average or Sum.

    Example:
        >>> hvd.reducescatter([1.0, 1.0], op=hvd.Sum).numpy()
        array([2.], dtype=float32)
    """
    return _values.reducescatter(value, name, op)


def broadcast_global_variables(root_rank: int) -> None:
    """Raises `RuntimeError`: Keras 3 has no list of all variables. Use `broadcast_variables`, or the callback.

    Example:
        >>> try:
        ...     hvd.broadcast_global_variables(root_rank=0)
        ... except RuntimeError:
        ...     print("Keras 3 does not know all variables")
        Keras 3 does not know all variables
    """
    raise RuntimeError(
        "broadcast_global_variables is not possible in Keras 3, which does not know all variables. Use "
        "hvd.callbacks.BroadcastGlobalVariablesCallback, or hvd.broadcast_variables(model.weights, root_rank)."
    )


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives these variables, the same ones on every rank, the values they have on `root_rank`.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> hvd.broadcast_variables(model.weights, root_rank=0)
    """
    _broadcast_variables(_keras, variables, root_rank, process_set=process_set)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a saved model and makes its optimizer distributed; training goes on from the optimizer's saved state.

    `custom_optimizers` and `custom_objects` are classes (or functions) that Keras does not know by itself. `legacy_opts` is
    accepted and not needed.

    Example:
        >>> path = f"model-{hvd.rank()}.keras"
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> model.save(path)
        >>> model = hvd.load_model(path)
    """
    return saving.load_model(
        _keras,
        lambda optimizer: DistributedOptimizer(optimizer, compression=compression),
        filepath,
        custom_optimizers,
        custom_objects,
    )
