"""Reduces gradients while the backward pass is still making others: the engine of `DistributedOptimizer`."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from corro import _native
from corro._environment import flag
from corro._errors import HorovodInternalError
from corro._front import basics, checks
from corro._front.arguments import Sum
from corro._front.checks import Facts
from corro._front.process_sets import ProcessSet
from corro.torch import _eager
from corro.torch._backward import graph_task, node_around, queue_callback, when_it_goes_on
from corro.torch._facts import elements, of_gradients, of_round, of_start
from corro.torch._groups import Group, buckets
from corro.torch._shared import share_gradients
from corro.torch._tensors import storage
from corro.torch._ways import Hooked, Rates, Way, way_for
from corro.torch.compression import NoneCompressor
from corro.torch.custom import CommHook
from corro.torch.mpi_ops import sparse_allreduce_async

# All there are: after a shutdown they must begin anew.
_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()

# How a reduction in flight ends: it waits, and leaves the reduced gradient in `p.grad`.
Finish = Callable[[], None]


class Reducer:
    """Knows which gradients are due, submits them, and waits for them.

    A gradient is due after `passes` backward passes. Parameters of one group are submitted together, when the last of
    them is due; those that the user has put in no group form groups as `buckets` says. Every parameter is reduced in
    every round, with zeros if it took no part, so that ranks stay in line.

    A round ends with the backward pass that made a gradient due: gradients are final when `backward()` returns. Then
    a program may do with them what it likes. Should it run another backward pass that reaches parameters which took no
    part so far (a second loss, with layers of its own), there is another round, before the step. A rank may be the only
    one with such a pass. So each round also tells whether any rank had parameters without a part in it, and only if one
    had, the ranks ask each other for more (`_settle`).
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
        # Steps of the optimizer: what the checks compare.
        self.steps = 0
        self._names = names
        # Another way than a plain allreduce; or a compressor as Horovod knows them.
        self._rates = Rates()
        self.way: Way | None = way_for(compression, process_set, numbers, self._rates)
        self._compression = compression if self.way is None else NoneCompressor
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._numbers = numbers
        self._passes_left: dict[torch.Tensor, int] = {}
        self._in_flight: dict[torch.Tensor, int | Finish] = {}
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = _no_optimizer
        self._watching = False
        self._hooks: list[Any] = []
        weakref.finalize(self, _remove, self._hooks)
        self._given_groups = groups
        self._groups: list[Group] = []
        self._group_of: dict[torch.Tensor, Group] = {}
        self._group()
        # Whether all gradients of this round are reduced; and those that were, without having been due.
        self._finished = False
        self._not_due: set[torch.Tensor] = set()
        # By which to tell that these gradients are still there: one of them.
        self._sign: tuple[torch.Tensor, Callable[[], torch.Tensor | None]]
        # Of `_not_due`: those to which other ranks had something to add; and those that were due in a later pass.
        self._from_others: set[torch.Tensor] = set()
        self._late: set[torch.Tensor] = set()
        self._paused = False
        # Whether some rank had such: then a rank may yet ask for another round.
        self._may_go_on = False
        self._ends_with = -1
        # Hooks that say when the pass around the one that has ended goes on.
        self._around: list[Any] = []
        self._sparse: set[torch.Tensor] = set()
        self._watch = checks.Watch(process_set)
        self._facts: Facts | None = None
        self._data = 0
        self._seen: list[tuple[str, list[float]]] = []
        self._rider: torch.Tensor | None = None
        # Gradients that live in memory which the ranks share, by their parameters.
        self._shared: dict[torch.Tensor, torch.Tensor] = {}
        self._outlived = False
        _reducers.add(self)

    def _group(self) -> None:
        """Forms the groups, those first whose gradients come first. The last goes when backward ends, with the rider."""
        given = {p for group in self._given_groups for p in group}
        rest = buckets([p for p in self._names if p.requires_grad and p not in given])
        self._groups = [Group(members) for members in (*reversed(self._given_groups), *rest) if members]
        self._group_of = {p: group for group in self._groups for p in group.members}
        for p in self._passes_left:
            self._alone_if_new(p)

    def _alone_if_new(self, p: torch.Tensor) -> None:
        if p not in self._group_of:
            self._group_of[p] = Group([p])
            self._groups.insert(0, self._group_of[p])

    def outlive(self) -> None:
        """The engine has ended. Should there be another, nothing of what was in flight is; and its ranks may be others."""
        self._outlived = True

    def _begin_anew(self) -> None:
        """Ranks that came later group gradients by the ranks there are now, so all must."""
        self._outlived = False
        self._in_flight.clear()
        self._group()
        self._start_over()
        self._watch.begin_anew()
        self.steps = 0
        # The memory was that engine's. The others may be at any other point, so no new one is made.
        self._shared = {}

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Has the gradients of the optimizer's parameters reduced from now on."""
        self._watching = True
        self._optimizer = weakref.ref(optimizer)
        self._rates.follow(optimizer)
        self._hook(p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
        # In an elastic job, ranks make their optimizers at different times, and this takes them all.
        wanted = flag("SHARED_GRADIENTS") and not flag("ELASTIC")
        if wanted and self.way is None and self._compression is NoneCompressor and not self._sparse_as_dense:
            # In the order of groups: then what is reduced together lies together.
            inside = [p for group in self._groups for p in group.members if p in self._passes_left]
            self._shared = dict(zip(inside, share_gradients(inside, self._process_set), strict=False))

    def _watch_new(self) -> None:
        """Adds what has come to the optimizer since, or is trained only now: all ranks find the same, in the same round.

        Every round asks, so names are made only if there is something new.
        """
        optimizer = self._optimizer()
        if not self._watching or optimizer is None:
            return
        known = self._passes_left
        if any(p.requires_grad and p not in known for group in optimizer.param_groups for p in group["params"]):
            new = {p: name for p, name in numbered(optimizer) if p.requires_grad and p not in known}
            self._names = {**new, **self._names}
            self._hook(new)

    def _hook(self, parameters: Iterable[torch.Tensor]) -> None:
        for p in parameters:
            if p not in self._passes_left:
                self._passes_left[p] = self.passes
                self._alone_if_new(p)
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
    def finished(self) -> bool:
        """Whether a backward pass has made, and reduced, gradients that no step has used yet."""
        return self._finished and not self._outlived

    @property
    def parameters(self) -> dict[torch.Tensor, str]:
        """What is watched, with its names."""
        return {p: self._names[p] for p in self._passes_left}

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """Those of all the optimizer's parameters, trained or not."""
        return self._names

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

    def zeroed(self) -> None:
        """The gradients are gone: counting starts anew."""
        self.synchronized = False
        if not self._outlived:
            self._start_over()

    def synchronize(self) -> None:
        """Leaves the reduced gradient in every `p.grad`, where backward has not done so, and begins the next round."""
        if self._outlived:
            self._begin_anew()
        self.finish()
        while self._may_go_on and self._settle():
            pass
        self._start_over()
        self.synchronized = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, gradients add up, and nothing is due."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def on_gradient(self, p: torch.Tensor) -> None:
        """A backward pass has made this parameter's gradient."""
        if self._paused:
            return
        if self._outlived:
            self._begin_anew()
        if self._finished and self._dropped():
            self._start_over()
        left = self._passes_left[p] - 1
        if p in self._not_due:
            left = self._is_late(p)
        if left < 0:
            raise AssertionError(
                f"the gradient of {self._names[p]} was computed more than {self.passes} times (backward_passes_per_step) "
                f"before step(). Call optimizer.step() after each backward pass, or raise backward_passes_per_step."
            )
        self._passes_left[p] = left
        self.synchronized = False
        if left > 0:
            return
        if p not in self._late:
            self._is_due(p)
        self._finish_with_backward()

    def _dropped(self) -> bool:
        """Whether the program has dropped the reduced gradients without a step, as it may when they overflow."""
        p, reduced = self._sign
        return p.grad is None or p.grad is not reduced()

    def _is_due(self, p: torch.Tensor) -> None:
        if self._watch.will_want_data:
            self._see(p)
        group = self._group_of[p]
        group.waits_for -= 1
        if group.waits_for == 0 and group is not self._groups[-1]:
            self._submit_group(group)

    def _is_late(self, p: torch.Tensor) -> int:
        """A backward pass has reached a parameter that was reduced without: it begins to count for another round."""
        if p in self._from_others:
            raise AssertionError(
                f"the gradient of {self._names[p]} was summed over the ranks (op=hvd.Sum) after one backward pass, and "
                f"this rank computed it in a later one. Add up the losses and call backward() once, or set "
                f"backward_passes_per_step to the number of backward passes before step()."
            )
        self._not_due.discard(p)
        self._late.add(p)
        return self.passes - 1

    def _finish_with_backward(self) -> None:
        """Has the round end with the backward pass that is running."""
        task = graph_task()
        # None runs if somebody calls the hook by hand; one that has failed never came to its end.
        if task not in (-1, self._ends_with):
            self._ends_with = task
            queue_callback(functools.partial(_on_end_of_backward, weakref.ref(self)))

    def end_of_backward(self) -> None:
        """The backward pass has come to its end."""
        if self._outlived:
            return
        # A pass within a pass, as checkpoints that are re-entrant run for their part of the model, is only a part. If
        # nothing is missing it is the last; else the round ends with the pass around.
        around = node_around() if any(self._passes_left.values()) else None
        if around is not None:
            _remove(self._around)
            self._around = when_it_goes_on(around, functools.partial(_on_pass_around, weakref.ref(self)))
            return
        if self._late:
            self._settle()
        elif not self._finished:
            self._submit_rest()
            # Other optimizers may be in this pass, on other ranks in another order: all submit before one waits.
            queue_callback(functools.partial(_on_all_submitted, weakref.ref(self)))

    def finish(self) -> None:
        """Waits until every `p.grad` holds the reduced gradient; submits what is missing, where that is not done."""
        if self._finished or self._outlived:
            return
        self._submit_rest()
        if not self._passes_left:
            return
        self._reduce()

    def _submit_rest(self) -> None:
        """Submits what has not been due, and what waits for the end of the round."""
        if self._groups and self._groups[-1].submitted:
            return
        self._watch_new()
        if not self._passes_left:
            return
        for p, left in self._passes_left.items():
            if left > 0:
                if p.grad is None:
                    p.grad = self._zeros(p)
                if self._watch.will_want_data:
                    self._see(p)
                self._not_due.add(p)
        self._submit_groups()

    def _settle(self) -> bool:
        """Asks all ranks whether one has had a backward pass since the last round. If so, there is another round."""
        name = f"{self._watch.name}.more"
        asked = checks.exchange([2 if self._late else 1], self._process_set, name)
        if all(answer == (1,) for answer in asked.values()):
            return False
        if self._numbers[0] == Sum:
            # What all ranks have already, each adds its part of.
            with torch.no_grad():
                for p in self._passes_left:
                    if p not in self._late:
                        _grad(p).div_(len(asked))
        self._late.clear()
        for group in self._groups:
            group.start_over()
        self._submit_groups()
        self._reduce()
        return True

    def _submit_groups(self) -> None:
        """The groups that are not on their way yet, and what tells the other ranks about this one."""
        self._facts = self._new_facts() if self._watch.next_round() else None
        self._data, self._seen = of_gradients(self._seen), []
        for group in self._groups[:-1]:
            if not group.submitted:
                self._submit_group(group)
        self._submit_group(self._groups[-1], self._new_rider(self._facts))

    def _reduce(self) -> None:
        """Waits for everything, and compares notes with the other ranks."""
        facts = self._facts
        if facts is not None and self._watch.wants_data:
            # Before gradients are waited for: those of different models may never come.
            self._facts = None
            self._watch.compare(facts, self._data)
            facts = None
        self._wait_for_all()
        self._finished = True
        p = self._groups[-1].members[-1]
        self._sign = (p, weakref.ref(_grad(p)))
        ridden = self._rider.tolist() if self._rider is not None else [0.0]
        self._may_go_on = ridden[0] > 0
        if self._numbers[0] == Sum:
            self._from_others = {p for p in self._not_due if _has_any(_grad(p))}
        self._facts = None
        if facts is not None and checks.disagree(ridden[1:]):
            self._watch.explain(facts)

    def _new_facts(self) -> Facts:
        optimizer, watch = self._optimizer(), self._watch
        if watch.rounds == 1:
            return of_start(self.parameters, optimizer, self.steps)
        return of_round(self.parameters, optimizer, self.steps, watch.rounds)

    def _new_rider(self, facts: Facts | None) -> torch.Tensor:
        """What goes along with the gradients: whether this rank had parameters that were not due, and its digest."""
        if self._rider is None:
            self._rider = torch.zeros(1 + checks.RIDER)
        rider = self._rider.zero_()
        if self._not_due:
            rider[0] = 1.0
        if facts is not None:
            rider[1:] = torch.tensor(checks.to_ride(checks.digest(list(facts.items()))))
        return rider

    def _see(self, p: torch.Tensor) -> None:
        """Notes a gradient before it is reduced."""
        grad = _grad(p)
        self._seen.append((self._names[p], elements(grad.coalesce().values() if grad.is_sparse else grad)))

    def _zeros(self, p: torch.Tensor) -> torch.Tensor:
        """The gradient of a parameter that took no part, of the kind that it usually has."""
        if p not in self._sparse:
            return torch.zeros_like(p)
        indices = torch.zeros((1, 0), dtype=torch.int64, device=p.device)
        return torch.sparse_coo_tensor(indices, p.new_zeros((0, *p.shape[1:])), p.shape, is_coalesced=True)

    def _submit_group(self, group: Group, rider: torch.Tensor | None = None) -> None:
        group.submitted = True
        dense = []
        for p in group.members:
            grad = _grad(p)
            if grad.is_sparse:
                self._submit_sparse(p, grad, self._names[p])
            else:
                dense.append(p)
        if self.way is not None:
            self._submit_by_way(self.way, dense, rider, self._names[group.members[0]])
        elif rider is None and len(dense) == 1:
            self._submit(dense[0])
        elif dense or rider is not None:
            self._submit_together(dense, rider, self._names[group.members[0]])

    def _submit(self, p: torch.Tensor) -> None:
        grad, name = _grad(p), self._names[p]
        if self._compression is NoneCompressor:
            self._in_flight[p] = _eager.in_place_async(
                "allreduce", grad, self._process_set, name, *self._numbers, keep=storage
            )
        else:
            packed, context = self._compression.compress(grad)
            handle = _eager.in_place_async("allreduce", packed, self._process_set, name, *self._numbers, keep=storage)
            self._in_flight[p] = lambda: self._take(p, self._compression.decompress(_native.wait(handle), context))

    def _submit_by_way(self, way: Way, dense: Sequence[torch.Tensor], rider: torch.Tensor | None, name: str) -> None:
        for p in dense:
            self._in_flight[p] = way.start(self._names[p], p, _grad(p))
        if rider is not None:
            self._in_flight[rider] = _eager.in_place_async(
                "allreduce", rider, self._process_set, f"{name}.rider", *self._numbers, keep=storage
            )

    def take_hook(self, state: Any, hook: CommHook) -> None:
        """From here on the hook reduces gradients."""
        if self.way is not None or self._compression is not NoneCompressor:
            raise ValueError("a communication hook replaces compression=: do not give both.")
        self.way = Hooked(state, hook, list(self._names))

    def _submit_sparse(self, p: torch.Tensor, grad: torch.Tensor, name: str) -> None:
        self._sparse.add(p)
        op = self._numbers[0]
        if not self._sparse_as_dense:
            wait = sparse_allreduce_async(grad, name, op, self._process_set)
            self._in_flight[p] = lambda: setattr(p, "grad", wait())
            return
        handle = _eager.in_place_async(
            "allreduce", grad.to_dense(), self._process_set, name, *self._numbers, keep=storage
        )
        self._in_flight[p] = lambda: setattr(p, "grad", _native.wait(handle).to_sparse())

    def _submit_together(self, dense: Sequence[torch.Tensor], rider: torch.Tensor | None, name: str) -> None:
        packed = [self._compression.compress(_grad(p)) for p in dense]
        tensors = [tensor for tensor, _ in packed]
        if rider is not None and (not tensors or tensors[0].is_cpu):
            tensors.append(rider)
        elif rider is not None:
            # A group is on one device; where gradients come from another, the rider is not worth the way there.
            self._in_flight[rider] = _eager.in_place_async(
                "allreduce", rider, self._process_set, f"{name}.rider", *self._numbers, keep=storage
            )
        handle = _eager.group_in_place_async(
            "allreduce", tensors, self._process_set, name, *self._numbers, keep=storage
        )

        def finish() -> None:
            for p, tensor, (_, context) in zip(dense, _native.wait(handle), packed, strict=False):
                self._take(p, self._compression.decompress(tensor, context))

        # One member stands for the group; the others are in flight without a wait of their own.
        first = dense[0] if dense else rider
        assert first is not None, "a group has members"
        self._in_flight.update(dict.fromkeys(dense[1:], _nothing))
        self._in_flight[first] = finish

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
            try:
                raise failure
            finally:
                # Its traceback leads to this frame, and this frame to it: a circle, and gradients would stay in it.
                del failure

    def _start_over(self) -> None:
        self._finished = self._may_go_on = False
        self._not_due.clear()
        self._from_others = set()
        self._late.clear()
        self._facts = None
        self._seen = []
        _remove(self._around)
        for group in self._groups:
            group.start_over()
        for p in self._passes_left:
            self._passes_left[p] = self.passes


def _on_gradient(reducer: weakref.ref[Reducer], p: torch.Tensor) -> None:
    """The hook of a parameter. It does not keep the optimizer alive: one that is gone has no gradients to reduce."""
    alive = reducer()
    if alive is not None:
        alive.on_gradient(p)


def _on_end_of_backward(reducer: weakref.ref[Reducer]) -> None:
    alive = reducer()
    if alive is not None:
        alive.end_of_backward()


def _on_pass_around(reducer: weakref.ref[Reducer]) -> None:
    alive = reducer()
    if alive is not None:
        alive._finish_with_backward()


def _on_all_submitted(reducer: weakref.ref[Reducer]) -> None:
    alive = reducer()
    if alive is not None:
        alive.finish()


def _remove(hooks: list[Any]) -> None:
    while hooks:
        hooks.pop().remove()


def _outlive() -> None:
    for reducer in _reducers:
        reducer.outlive()


basics.after_shutdown(_outlive)


def _nothing() -> None:
    pass


def _grad(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter that is due, so that there is one."""
    assert p.grad is not None
    return p.grad


def _has_any(grad: torch.Tensor) -> bool:
    """Whether there is anything but zeros in it."""
    return bool((grad.coalesce().values() if grad.is_sparse else grad).any())


def numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str]]:
    """The parameters of the optimizer, with names for those that have none."""
    for i, group in enumerate(optimizer.param_groups):
        for j, p in enumerate(group["params"]):
            yield p, f"allreduce.noname.{i}.{j}"


def _no_optimizer() -> None:
    return None
