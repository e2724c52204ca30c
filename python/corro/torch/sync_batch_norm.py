"""Batch normalisation with statistics over the batches of all ranks, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from corro._front import basics
from corro._front.arguments import Sum
from corro._front.process_sets import global_process_set
from corro.torch import _eager


class SyncBatchNorm(_BatchNorm):
    """Takes the place of `torch.nn.BatchNorm1d`, `2d` and `3d`, with their arguments.

    While training, mean and variance are those of all ranks' samples. On the CPU and on GPUs.

    Example:
        >>> layer = hvd.SyncBatchNorm(1)
        >>> output = layer(torch.full((4, 1), float(hvd.rank())))
        >>> layer.running_mean
        tensor([0.0500])
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        self._check_input_dim(input)
        use_batch = self.training or self.running_mean is None
        if not use_batch or not basics.is_initialized() or basics.size() == 1:
            return self._local(input, use_batch)
        momentum = self._count_batch()
        return _Normalize.apply(
            input, self.weight, self.bias, self.running_mean, self.running_var, self.eps, momentum, self.training
        )

    def _count_batch(self) -> float:
        """The weight of the new batch in the running statistics: a plain average when `momentum` is None."""
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return momentum

    def _local(self, input: torch.Tensor, use_batch: bool) -> torch.Tensor:  # noqa: A002
        momentum = self._count_batch()
        track = not self.training or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if track else (None, None)
        return torch.nn.functional.batch_norm(
            input, mean, variance, self.weight, self.bias, use_batch, momentum, self.eps
        )


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        momentum: float,
        training: bool,
    ) -> torch.Tensor:
        channels = input.shape[1]
        other_dims = [d for d in range(input.dim()) if d != 1]
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        count = input.numel() // channels if channels else 0
        if count:
            mean = wide.mean(other_dims)
            squares = (wide - _along_channels(mean, wide)).square().sum(other_dims)
        else:
            mean = squares = wide.new_zeros(channels)

        # One row per rank: its count, its means, its sums of squares around them. Combining these, rather than plain
        # sums, keeps the precision of a variance that is small beside the mean.
        row = torch.cat([mean.new_tensor([count]), mean, squares]).unsqueeze(0)
        rows = _eager.resized("allgather", row, global_process_set, None)
        counts, means, all_squares = rows[:, :1], rows[:, 1 : 1 + channels], rows[:, 1 + channels :]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = (all_squares.sum(0) + ((means - mean).square() * counts).sum(0)) / total
        if training and running_mean is not None and running_var is not None:
            unbiased = variance * (total / (total - 1).clamp(min=1))
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)

        inverse_std = torch.rsqrt(variance + eps)
        normal = (wide - _along_channels(mean, wide)) * _along_channels(inverse_std, wide)
        ctx.save_for_backward(normal, weight, inverse_std, total)
        output = normal
        if weight is not None:
            output = output * _along_channels(weight, wide)
        if bias is not None:
            output = output + _along_channels(bias, wide)
        return output.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        normal, weight, inverse_std, total = ctx.saved_tensors
        other_dims = [d for d in range(grad.dim()) if d != 1]
        wide = grad.to(normal.dtype)
        sum_grad, sum_grad_normal = wide.sum(other_dims), (wide * normal).sum(other_dims)
        # The gradients of weight and bias stay local: the optimizer reduces them with all others.
        weight_grad = sum_grad_normal if ctx.needs_input_grad[1] else None
        bias_grad = sum_grad if ctx.needs_input_grad[2] else None
        input_grad = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([sum_grad, sum_grad_normal])
            sums = _eager.in_place("allreduce", sums, global_process_set, None, Sum) / total
            mean_grad, mean_grad_normal = sums.chunk(2)
            scale = inverse_std if weight is None else inverse_std * weight
            centred = wide - _along_channels(mean_grad, wide) - normal * _along_channels(mean_grad_normal, wide)
            input_grad = (centred * _along_channels(scale, wide)).to(grad.dtype)
        return input_grad, weight_grad, bias_grad, None, None, None, None, None


def _along_channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *[1] * (like.dim() - 2))
