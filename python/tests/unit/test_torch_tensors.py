"""What the engine is told of torch's tensors."""

from __future__ import annotations

import torch

from corro.torch._tensors import rounded_each


def on_no_host(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(3, dtype=dtype, device="meta")


def test_factors_are_rounded_by_the_dtype_of_each_tensor() -> None:
    third = torch.tensor(1 / 3, dtype=torch.bfloat16).item()
    half, single = on_no_host(torch.bfloat16), on_no_host(torch.float32)
    numbers = (1, 1 / 3, 0.5, None)
    assert rounded_each(numbers, [half, single, half]) == (1, [third, 1 / 3, third], [0.5, 0.5, 0.5], None)
    assert rounded_each(numbers, [half, half]) == (1, third, 0.5, None)
    assert rounded_each(numbers, [single, single]) == numbers
    assert rounded_each((1,), [half, single]) == (1,)
    assert rounded_each((), [half, single]) == ()
    assert rounded_each(numbers, [torch.ones(1, dtype=torch.bfloat16), torch.ones(1)]) == numbers
