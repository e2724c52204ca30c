"""How a torch tensor becomes what the engine takes, and back: torch's `corro._front.adapter.Adapter`.

A contiguous tensor on the CPU, or on a GPU, is never copied.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from corro._front.adapter import CPU, View
from corro._native import Output, expect_foreign_threads, register_streams, takes_gpu_memory

# Horovod's numbers, then ours. Older torch versions lack the last ones.
DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bool: 9,
    torch.bfloat16: 10,
}
for _name, _number in (("uint16", 2), ("uint32", 11), ("uint64", 12)):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _number


_strided = torch.strided

empty_like = torch.empty_like
is_on_host = attrgetter("is_cpu")
is_on_gpu = attrgetter("is_cuda")
device = attrgetter("device")


def reachable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if the engine can use it where it is, else a contiguous copy: beside it, or on the CPU."""
    if tensor.layout is _strided and tensor.is_contiguous() and not tensor.is_neg() and _is_reached(tensor):
        return tensor
    return _copy(tensor)


def _is_reached(tensor: torch.Tensor) -> bool:
    """Whether the engine can use memory where this tensor lies."""
    return tensor.is_cpu or (tensor.is_cuda and _takes_gpu_memory())


def place(tensor: torch.Tensor) -> View | None:
    """The `view` of a tensor that the engine can use where it is; None if that takes a copy: `reachable`."""
    if tensor.is_cpu and tensor.layout is _strided and tensor.is_contiguous() and not tensor.is_neg():
        dtype = DTYPES.get(tensor.dtype)
        if dtype is not None:
            return (tensor.data_ptr(), tensor.shape, dtype, CPU)
    elif tensor.is_cuda and tensor.layout is _strided and tensor.is_contiguous() and not tensor.is_neg():
        dtype = DTYPES.get(tensor.dtype)
        if dtype is not None and _takes_gpu_memory():
            number = tensor.device.index or 0
            return (tensor.data_ptr(), tensor.shape, dtype, number, current_stream(number))
    return None


def current_stream(device: int) -> int:
    """The number by which CUDA knows torch's current stream. Every submit asks for it."""
    return int(_raw_stream(device))


def _stream_of_object(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# What torch's own compiler calls; without it a Python object is made each time, which takes ten times as long.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_of_object)


@functools.cache
def _takes_gpu_memory() -> bool:
    """Whether the engine takes tensors on GPUs where they are. Asked first when there is one."""
    # Backward passes on a GPU run on threads of torch's own.
    expect_foreign_threads()
    if not takes_gpu_memory():
        return False
    register_streams(current_stream)
    return True


def hold(tensor: torch.Tensor) -> Any:
    """Something that keeps the memory of a tensor where it is, whatever becomes of the tensor (`t.data = other`).

    torch gives back the memory of a storage that is resized. Not so if numpy has been shown it: then it refuses. So
    does whoever asks afterwards: a storage that has been in flight keeps its size for good, as one that numpy knows.
    On a GPU nothing stops torch, so that the end of the operation looks.
    """
    if tensor.is_cuda:
        return _OnGpu(tensor)
    alias = tensor.detach()
    try:
        return (alias.view(torch.int16) if alias.dtype == torch.bfloat16 else alias).numpy()
    except (RuntimeError, TypeError):
        # There is no numpy, or the tensor is of a class that has none: a storage of its own is all there is to keep.
        return storage(tensor)


class _OnGpu:
    """The storage of a tensor on a GPU, and where it was."""

    __slots__ = ("address", "shape", "storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = tensor.untyped_storage()
        self.address = self.storage.data_ptr()
        self.shape = tensor.shape

    def check(self) -> None:
        """The engine asks when the operation is over: its result is worth nothing if the memory was given back."""
        if self.storage.data_ptr() != self.address:
            raise RuntimeError(
                f"the storage of a tensor of shape {tuple(self.shape)} on a GPU was resized while an operation on it was in "
                f"flight, so its result is lost, and what took over the memory may be overwritten. Synchronize the "
                f"handle first, then resize."
            )


def storage(tensor: torch.Tensor) -> Any:
    """What keeps the memory of a tensor that nobody resizes meanwhile: quicker than `hold`."""
    return tensor.untyped_storage()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"a {tensor.layout} tensor is not supported here. For sparse gradients use hvd.sparse_allreduce_async, "
            f"or tensor.to_dense()."
        )
    copy = tensor.detach() if _is_reached(tensor) else tensor.detach().to("cpu")
    copy = copy.contiguous().resolve_neg()
    return copy.clone() if copy.data_ptr() == tensor.data_ptr() else copy


def view(home: torch.Tensor, tensor: torch.Tensor) -> View:
    """What `reachable` returned for `tensor`, in the engine's words."""
    here = place(home)
    if here is None:
        raise ValueError(
            f"a tensor of {home.dtype} is not supported; convert it first, for example with tensor.float()."
        )
    # Where a tensor lives, whatever memory it is handed over in: ranks whose tensors do not all live alike are told.
    return here if home.is_cuda else (*here[:3], device_number(tensor))


def device_number(tensor: torch.Tensor) -> int:
    """Where a tensor lives, whatever memory it is handed over in: ranks whose tensors do not all live alike are told."""
    return CPU if tensor.is_cpu else tensor.device.index or 0


_HALVES = (torch.float16, torch.bfloat16)


def rounded(numbers: tuple[Any, ...], tensor: torch.Tensor) -> tuple[Any, ...]:
    """The engine's numbers (op, prescale, postscale, ...) for a tensor. On a GPU, torch multiplies 16-bit numbers by
    16-bit numbers.
    """
    if not numbers or tensor.is_cpu or tensor.dtype not in _HALVES:
        return numbers
    op, *factors = numbers
    return (op, *(torch.tensor(x, dtype=tensor.dtype).item() for x in factors[:2]), *factors[2:])


def rounded_each(numbers: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The same for the tensors of a group, which are on one device."""
    first = tensors[0].dtype
    if not numbers or tensors[0].is_cpu or all(tensor.dtype is first for tensor in tensors):
        return rounded(numbers, tensors[0])
    # Each dtype once: there are few, and many tensors.
    found = {tensor.dtype: rounded(numbers, tensor) for tensor in {tensor.dtype: tensor for tensor in tensors}.values()}
    factors = zip(*(found[tensor.dtype][1:3] for tensor in tensors), strict=True)
    return (numbers[0], *map(list, factors), *numbers[3:])


def put_back(places: tuple[torch.Tensor, torch.Tensor], _output: Output | None = None) -> torch.Tensor:
    """Ends an operation in place: (the user's tensor, where the engine worked) -> the user's tensor."""
    tensor, home = places
    if home is not tensor:
        with torch.no_grad():
            tensor.copy_(home)
    return tensor


def to_device(places: tuple[torch.Tensor, torch.Tensor], _output: Output | None = None) -> torch.Tensor:
    """Ends an operation with a new result: (the input, the result) -> the result beside the input."""
    tensor, result = places
    return result if tensor.is_cpu else result.to(tensor.device)


def from_output(like: torch.Tensor, output: Output | None) -> torch.Tensor:
    """The memory the engine allocated, as a tensor with the dtype and device of `like`."""
    assert output is not None, "this kind of operation has a result of its own"
    if output.nbytes == 0 or output.is_on_gpu:
        result = torch.empty(output.shape, dtype=like.dtype, device=like.device)
        if output.is_on_gpu:
            output.copy_to(result.data_ptr(), current_stream(result.device.index))
        return result
    result = from_dlpack(output.__dlpack__()).view(like.dtype).view(output.shape)
    return result if like.is_cpu else result.to(like.device)


def with_splits(like_and_device: tuple[torch.Tensor, Any], output: Output | None) -> tuple[torch.Tensor, torch.Tensor]:
    """An alltoall's two results: the rows, and how many came from each rank."""
    like, device = like_and_device
    assert output is not None, "an alltoall has a result of its own"
    splits = torch.tensor(output.received_splits, dtype=torch.int32, device=device)
    return from_output(like, output), splits
