"""The fronts, as the shared cases see them. A new front is a line in `FRONTS` and a class."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np


class NumpyFront:
    name = "numpy"
    # What some cases need: see `cases.needs`.
    has = ("handles", "in place", "out", "adasum")
    # Whether a group of no tensors is fine.
    empty_groups = False
    dtypes = ("uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64")

    def __init__(self) -> None:
        import corro.numpy as hvd

        self.hvd: Any = hvd

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        return np.array(values, dtype)

    def array(self, tensor: Any) -> Any:
        return np.asarray(tensor)


class TorchFront:
    name = "torch"
    has = ("handles", "in place", "adasum")
    empty_groups = False
    dtypes = (*("uint8", "int8", "int16", "int32", "int64"), *("float16", "bfloat16", "float32", "float64"))

    def __init__(self) -> None:
        import torch

        import corro.torch as hvd

        self.hvd: Any = hvd
        self.torch = torch

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        return self.torch.tensor(values, dtype=getattr(self.torch, dtype))

    def array(self, tensor: Any) -> Any:
        # numpy has no bfloat16; double holds every number of these tests.
        return (tensor.double() if tensor.dtype == self.torch.bfloat16 else tensor).numpy()


class TensorFlowFront:
    """TensorFlow, eagerly. Its errors are TensorFlow's own: here they are those of the other fronts."""

    name = "tensorflow"
    has = ("adasum",)
    empty_groups = True
    dtypes = (
        *("uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64"),
    )
    graph = False

    def __init__(self) -> None:
        import tensorflow as tf

        import corro.tensorflow as hvd

        self.tf: Any = tf
        self.hvd = self
        self._hvd: Any = hvd
        self.HorovodInternalError = hvd.HorovodInternalError

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        return self.tf.constant(values, dtype=getattr(self.tf, dtype))

    def array(self, tensor: Any) -> Any:
        tensor = self.tf.convert_to_tensor(tensor)
        return (self.tf.cast(tensor, "float64") if tensor.dtype == self.tf.bfloat16 else tensor).numpy()

    def join(self) -> int:
        return int(self._hvd.join())

    def allgather_object(self, obj: Any, name: str | None = None) -> list[Any]:
        return self._hvd.allgather_object(obj, name=name)

    def broadcast_object(self, obj: Any, root_rank: int, name: str | None = None) -> Any:
        return self._hvd.broadcast_object(obj, root_rank, name=name)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._hvd, name)
        moves = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
        return self._translated(found) if name.removeprefix("grouped_") in moves else found

    def _translated(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        errors = self.tf.errors

        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if not self.graph:
                    return operation(tensor, *args, **kwargs)
                return self.tf.function(lambda tensor: operation(tensor, *args, **kwargs))(tensor)
            except errors.InvalidArgumentError as error:
                raise ValueError(str(error)) from error
            except (errors.FailedPreconditionError, errors.UnknownError, errors.AbortedError) as error:
                raise self.HorovodInternalError(str(error)) from error

        return call


class TensorFlowGraphFront(TensorFlowFront):
    """TensorFlow, each operation in a graph."""

    name = "tensorflow graph"
    graph = True


class JaxFront:
    """JAX, outside of any trace."""

    name = "jax"
    has = ("adasum",)
    empty_groups = False
    dtypes = ("uint8", "int8", "uint16", "int16", "int32", "uint32", "float16", "bfloat16", "float32")

    def __init__(self) -> None:
        import jax.numpy as jnp

        import corro.jax as hvd

        self.hvd: Any = hvd
        self.jnp: Any = jnp

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        return self.jnp.asarray(np.asarray(values), dtype)

    def array(self, tensor: Any) -> Any:
        return np.asarray(tensor.astype("float32") if tensor.dtype == "bfloat16" else tensor)


class MxnetFront:
    name = "mxnet"
    has = ("in place",)
    empty_groups = True
    dtypes = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")

    def __init__(self) -> None:
        import mxnet as mx

        import corro.mxnet as hvd
        import corro.numpy as others

        self.mx: Any = mx
        self.hvd = self
        self._hvd: Any = hvd
        # Horovod's front for MXNet has neither join nor barrier; the engine does.
        self._others: Any = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hvd if hasattr(self._hvd, name) else self._others, name)

    def reducescatter(self, tensor: Any, **options: Any) -> Any:
        try:
            return self._hvd.reducescatter(tensor, **options)
        except AssertionError as error:  # what scripts for MXNet know
            raise self._hvd.HorovodInternalError(str(error)) from error

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        values = np.asarray(values)
        # Scalars and empty arrays exist only where MXNet does as numpy does.
        with self.mx.util.np_shape(True):
            return self.mx.nd.array(values, dtype=dtype)

    def array(self, tensor: Any) -> Any:
        return tensor.asnumpy()


# Which framework's tests run is said by scripts/python_test: their environments are different.
FRONTS = {
    "torch": (NumpyFront, TorchFront),
    "tensorflow": (TensorFlowFront, TensorFlowGraphFront),
    "jax": (JaxFront,),
    "mxnet": (MxnetFront,),
}[os.environ.get("CORRO_TEST_FRAMEWORK", "torch")]
