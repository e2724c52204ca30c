"""The fronts, as the shared cases see them. A new front is a line in `FRONTS` and a class."""

from __future__ import annotations

from typing import Any

import numpy as np


class NumpyFront:
    name = "numpy"
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


FRONTS = (NumpyFront, TorchFront)
