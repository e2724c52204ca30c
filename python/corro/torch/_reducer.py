"""Reduces gradients while the backward pass is still making others: the engine of `DistributedOptimizer`."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from corro import _native
from corro._environment import flag
from corro._errors import HorovodInternalError
from corro._front import basics, checks
from corro._front.arguments import set_size
from corro._front.process_sets import ProcessSet
from corro.torch import _eager
from corro.torch._shared import share_gradients
from corro.torch._tensors import host
from corro.torch.compression import NoneCompressor
from corro.torch.mpi_ops import sparse_allreduce_async

# Gradients of so many bytes are worth a collective of their own while backward goes on.
BUCKET_BYTES = 1 << 20

# All there are: after a shutdown they must begin anew.
_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()

# How a reduction in flight ends: it waits, and leaves the reduced gradient in `p.grad`.
Finish = Callable[[], None]


class Reducer:
    """Knows which gradients are due, submits them, and waits for them.

    A gradient is due after `passes` backward passes. Parameters of one group are submitted together, when the last of
    them is due; those that the user has put in no group form groups as `_buckets` says. Every parameter is reduced in
    every step, with zeros if it took no part, so that ranks stay in line.
    """

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        groups: Sequence[Sequence[torch.Tensor]],
        passes: int,
        compression: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        numbers: tuple[int, float, float],
    ) -> None:
        self.passes = passes
        self.synchronized = False
        self._names = names
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._numbers = numbers
        self._passes_left: dict[torch.Tensor, int] = {}
        self._in_flight: dict[torch.Tensor, int | Finish] = {}
        self._watching = False
        self._hooks: list[Any] = []
        weakref.finalize(self, _remove, self._hooks)
        self._groups = groups
        self._group_of = self._grouped()
        self._ready: dict[tuple[torch.Tensor, ...], set[torch.Tensor]] = {}
        self._checks = _FirstStep(self) if checks.enabled() else None
        # Gradients that live in memory which the ranks share, by their parameters.
        self._shared: dict[torch.Tensor, torch.Tensor] = {}
        self._outlived = False
        _reducers.add(self)

    def _grouped(self) -> dict[torch.Tensor, tuple[torch.Tensor, ...]]:
        group_of = {p: tuple(group) for group in self._groups for p in group}
        for bucket in _buckets([p for p in self._names if p.requires_grad and p not in group_of]):
            group_of.update(dict.fromkeys(bucket, tuple(bucket)))
        return group_of

    def outlive(self) -> None:
        """The engine has ended. Should there be another, nothing of what was in flight is; and its ranks may be others."""
        self._outlived = True

    def _begin_anew(self) -> None:
        """Ranks that came later group gradients by the ranks there are now, so all must."""
        self._outlived = False
        self._in_flight.clear()
        self._group_of = self._grouped()
        self._start_over()
        # The memory was that engine's. The others may be at any other point, so no new one is made.
        self._shared = {}

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Has the gradients of these parameters reduced from now on."""
        self._watching = True
        self._hook(p for p in parameters if p.requires_grad)
        # In an elastic job, ranks make their optimizers at different times, and this takes them all.
        wanted = flag("SHARED_GRADIENTS") and not flag("ELASTIC")
        if wanted and self._compression is NoneCompressor and not self._sparse_as_dense:
            # In the order of groups: then what is reduced together lies together.
            inside = [p for group in dict.fromkeys(self._group_of.values()) for p in group if p in self._passes_left]
            self._shared = dict(zip(inside, share_gradients(inside, self._process_set), strict=False))

    def watch_new(self, groups: list[dict[str, Any]], named: Callable[[], Iterable[tuple[torch.Tensor, str]]]) -> None:
        """Adds what has come to the optimizer since, or is trained only now: all ranks find the same, at the same step.

        Every step asks, so names are made only if there is something new.
        """
        known = self._passes_left
        if self._watching and any(p.requires_grad and p not in known for group in groups for p in group["params"]):
            new = {p: name for p, name in named() if p.requires_grad and p not in known}
            self._names = {**new, **self._names}
            self._hook(new)

    def _hook(self, parameters: Iterable[torch.Tensor]) -> None:
        for p in parameters:
            if p not in self._passes_left:
                self._passes_left[p] = self.passes
                hook = functools.partial(_on_gradient, weakref.ref(self))
                self._hooks.append(p.register_post_accumulate_grad_hook(hook))

    def keep_shared(self) -> None:
        """Zeros the gradients that live in shared memory, where others would be dropped."""
        for p, gradient in self._shared.items():
            p.grad = gradient.zero_()

    @property
    def pending(self) -> bool:
        """Whether reductions are in flight."""
        return bool(self._in_flight) and not self._outlived

    @property
    def parameters(self) -> dict[torch.Tensor, str]:
        """What is watched, with its names."""
        return {p: self._names[p] for p in self._passes_left}

    @property
    def process_set(self) -> ProcessSet:
        return self._process_set

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        self._start_over()

    def forget(self) -> None:
        """Drops what is in flight (waiting for it first) and starts counting anew."""
        if self._outlived:
            self._in_flight.clear()
        # What has failed is dropped as well; whoever waited for it has been told.
        with contextlib.suppress(HorovodInternalError):
            self._wait_for_all()
        self.synchronized = False
        self._start_over()

    def synchronize(self) -> None:
        """Submits what is missing, and waits until every `p.grad` holds the reduced gradient."""
        if self._outlived:
            self._begin_anew()
        for p in self._passes_left:
            if p not in self._in_flight:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self._submit_due(p)
        self._wait_for_all()
        self._start_over()
        if self._checks is not None:
            self._checks.compare()
            self._checks = None
        self.synchronized = True

    def on_gradient(self, p: torch.Tensor) -> None:
        """A backward pass has made this parameter's gradient."""
        if self._outlived:
            self._begin_anew()
        left = self._passes_left[p] - 1
        if left < 0:
            raise AssertionError(
                f"the gradient of {self._names[p]} was computed more than {self.passes} times (backward_passes_per_step) "
                f"before step(). Call optimizer.step() after each backward pass, or raise backward_passes_per_step."
            )
        self._passes_left[p] = left
        if left == 0:
            self._submit_due(p)

    def _submit_due(self, p: torch.Tensor) -> None:
        """Submits a gradient; one of a group waits for the others."""
        self._passes_left[p] = 0
        if self._checks is not None:
            self._checks.see(p)
        group = self._group_of.get(p, (p,))
        if len(group) == 1:
            self._submit(p)
            return
        ready = self._ready.setdefault(group, set())
        ready.add(p)
        if len(ready) == len(group):
            self._submit_group([member for member in group if not _grad(member).is_sparse])
            for member in group:
                if _grad(member).is_sparse:
                    self._submit(member)

    def _submit(self, p: torch.Tensor) -> None:
        grad, name = _grad(p), self._names[p]
        if grad.is_sparse:
            self._submit_sparse(p, grad, name)
        elif self._compression is NoneCompressor:
            self._in_flight[p] = _eager.in_place_async("allreduce", grad, self._process_set, name, *self._numbers)
        else:
            packed, context = self._compression.compress(grad)
            handle = _eager.in_place_async("allreduce", packed, self._process_set, name, *self._numbers)
            self._in_flight[p] = lambda: self._take(p, self._compression.decompress(_native.wait(handle), context))

    def _submit_sparse(self, p: torch.Tensor, grad: torch.Tensor, name: str) -> None:
        op = self._numbers[0]
        if not self._sparse_as_dense:
            wait = sparse_allreduce_async(grad, name, op, self._process_set)
            self._in_flight[p] = lambda: setattr(p, "grad", wait())
            return
        handle = _eager.in_place_async("allreduce", grad.to_dense(), self._process_set, name, *self._numbers)
        self._in_flight[p] = lambda: setattr(p, "grad", _native.wait(handle).to_sparse())

    def _submit_group(self, group: Sequence[torch.Tensor]) -> None:
        if not group:
            return
        packed = [self._compression.compress(_grad(p)) for p in group]
        tensors = [tensor for tensor, _ in packed]
        name = self._names[group[0]]
        handle = _eager.group_in_place_async("allreduce", tensors, self._process_set, name, *self._numbers)

        def finish() -> None:
            for p, tensor, (_, context) in zip(group, _native.wait(handle), packed, strict=True):
                self._take(p, self._compression.decompress(tensor, context))

        # The first member stands for the group; the others are in flight without a wait of their own.
        self._in_flight.update(dict.fromkeys(group[1:], _nothing))
        self._in_flight[group[0]] = finish

    @staticmethod
    def _take(p: torch.Tensor, reduced: torch.Tensor) -> None:
        if reduced is not p.grad:
            with torch.no_grad():
                _grad(p).copy_(reduced)

    def _wait_for_all(self) -> None:
        """Waits for everything, also when something fails: nothing may write into a gradient afterwards."""
        failure = None
        for p, finish in list(self._in_flight.items()):
            try:
                if isinstance(finish, int):
                    _native.wait(finish)
                else:
                    finish()
            except Exception as error:
                failure = failure or error
            # Not if it was Ctrl-C that ended the wait: then all that is left is still in flight.
            del self._in_flight[p]
        if failure is not None:
            self._start_over()
            raise failure

    def _start_over(self) -> None:
        self._ready.clear()
        for p in self._passes_left:
            self._passes_left[p] = self.passes


def _on_gradient(reducer: weakref.ref[Reducer], p: torch.Tensor) -> None:
    """The hook of a parameter. It does not keep the optimizer alive: one that is gone has no gradients to reduce."""
    alive = reducer()
    if alive is not None:
        alive.on_gradient(p)


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _outlive() -> None:
    for reducer in _reducers:
        reducer.outlive()


basics.after_shutdown(_outlive)


def _buckets(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """What is reduced together: a few small gradients that come one after the other, as handing over each costs time.

    Without idle cores it is all of them: collectives in the background would only take turns with backward.
    """
    enough = BUCKET_BYTES if _has_idle_cores() else math.inf
    buckets: list[list[torch.Tensor]] = [[]]
    filled = 0
    # Backward makes the gradients of the last layers first.
    for p in reversed(parameters):
        if filled >= enough:
            buckets.append([])
            filled = 0
        buckets[-1].append(p)
        filled += p.numel() * p.element_size()
    return buckets


def _has_idle_cores() -> bool:
    """Whether this host has cores that the ranks' own threads leave free. `CORRO_OVERLAP` (0 or 1) overrules it."""
    return flag("OVERLAP", len(os.sched_getaffinity(0)) > basics.local_size() * torch.get_num_threads())


def _nothing() -> None:
    pass


def _grad(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter that is due, so that there is one."""
    assert p.grad is not None
    return p.grad


class _FirstStep:
    """The checks of `CORRO_CHECKS=1`: they look at the first step, then leave."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._gradients: dict[str, int] = {}

    def see(self, p: torch.Tensor) -> None:
        """Notes a gradient before it is reduced."""
        grad = _grad(p)
        self._gradients[self._reducer.parameters[p]] = _digest(grad.to_dense() if grad.is_sparse else grad)

    def compare(self) -> None:
        """Compares with the other ranks, before the optimizer changes anything."""
        reducer = self._reducer
        checks.same_parameters({name: _digest(p) for p, name in reducer.parameters.items()}, reducer.process_set)
        if set_size(reducer.process_set) > 1:
            checks.different_data(sorted(self._gradients.items()), reducer.process_set)


def _digest(tensor: torch.Tensor) -> int:
    home = host(tensor.detach())
    return checks.digest(home.data_ptr(), home.numel() * home.element_size())
