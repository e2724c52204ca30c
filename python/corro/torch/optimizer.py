"""`DistributedOptimizer`: any torch optimizer, with its gradients averaged over the ranks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from corro._front import basics, checks, watching
from corro._front.arguments import Adasum, Average, Sum
from corro._front.engine_compression import settings_of
from corro._front.process_sets import ProcessSet, global_process_set
from corro._native import epoch
from corro.common.util import split_list
from corro.torch import _eager
from corro.torch._facts import of_round, of_start
from corro.torch._reducer import Reducer, numbered
from corro.torch.compression import Compression
from corro.torch.custom import CommHook
from corro.torch.mpi_ops import synchronize as wait

if TYPE_CHECKING:
    from corro.torch._types import Distributed

Names = dict[torch.Tensor, str]

# Where a state dictionary has what compression remembers: each rank's own.
REMEMBERED = "corro_compression"


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    mode: str = "allreduce",
    staleness: int | None = 0,
    servers: Any = None,
) -> Distributed:
    """The same optimizer, whose `step` works with gradients reduced over all ranks of the set.

    The result is an instance of a subclass of the optimizer's class, with the same name, and shares its parameter groups and
    state. Gradients are reduced while backward is still running, and final when it returns.

    `named_parameters` (`model.named_parameters()`) gives the names for messages. `op` is Average, Sum or Adasum;
    `backward_passes_per_step` adds up as many backward passes before it reduces; `groups` reduces parameters together,
    by number of groups or by lists. `gradient_predivide_factor` divides by as much before the sum and by the rest
    after it. `sparse_as_dense` makes sparse gradients dense. `compression` sends fewer bytes between hosts: one for
    all, such as `hvd.Compression.int8()`, or a dictionary of patterns of names, as `{"*.bias": hvd.Compression.none,
    "*": hvd.Compression.powersgd(rank=4)}`, of which the first that fits counts. What it leaves out is in
    `state_dict()`, each rank's own: save it on every rank. Raises `ValueError` for names that are missing or come
    twice.

    `mode="ps"` has parameter servers do it. With `staleness=0` they average gradients, and all ends as with allreduce.
    With a larger `staleness` ranks may be that many steps apart (None: any number), and servers own the parameters and
    run the optimizer, which must be SGD, Adam, AdamW or Adagrad; what it remembers is saved by `optimizer.store`.
    `servers` is as in `corro.ps.Store`; `compression` is fp16, bf16 or int8 then.

    New methods: `synchronize()` waits for all gradients, `skip_synchronize()` is for a `step` after it, `no_sync()` for
    batches whose gradients only add up, `set_backward_passes_per_step(n)`.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> loss = model(torch.randn(8, 2)).square().mean()  # each rank's own data
        >>> loss.backward()
        >>> optimizer.step()
    """
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is only supported with op=hvd.Average.")
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = _names(optimizer, named_parameters)
    if mode != "allreduce":
        from corro.torch import _served

        _served.check(mode, staleness)
        codes = _served.codes_of(compression, Compression.none)
        compression = Compression.none
        if staleness != 0:
            served = _subclass(optimizer, _served.ServedOptimizer)
            served._serve(names, process_set, staleness, servers, codes)
            return served  # type: ignore[no-any-return]
    group_lists = _groups(groups, list(names))

    if op == Adasum and settings_of(compression, Compression.none) is not None:
        raise ValueError("op=hvd.Adasum works with Compression.none, fp16 and bf16 only.")
    if op == Adasum and (basics.size() > 1 or basics.elastic_enabled()):
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum works on the global process set only.")
        adasum = _subclass(optimizer, _AdasumOptimizer)
        adasum._distribute(names, compression)
        return adasum

    if op not in (Average, Sum, Adasum):
        raise ValueError("DistributedOptimizer supports op=hvd.Average, hvd.Sum and hvd.Adasum.")
    factors = (1.0, 1.0)
    if gradient_predivide_factor != 1.0 and not group_lists:
        factors = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    # Adasum of one rank is that rank's gradient.
    numbers = (Sum if op == Adasum else op, *factors)
    distributed = _subclass(optimizer, _DistributedOptimizer)
    reducer = Reducer(names, group_lists, backward_passes_per_step, compression, sparse_as_dense, process_set, numbers)
    if mode != "allreduce" and process_set.included() and (basics.size() > 1 or basics.elastic_enabled()):
        reducer.way = _served.Served(names, process_set, numbers, servers, codes)
    distributed._distribute(reducer)
    return distributed


def _subclass(optimizer: torch.optim.Optimizer, mixin: type) -> Any:
    """A twin of `optimizer` that shares all it has, with the methods of `mixin` before its own."""
    cls = type(optimizer)
    twin: Any = type(cls.__name__, (mixin, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    new = twin.__new__(twin)
    new.__dict__.update(optimizer.__dict__)
    # A learning-rate scheduler puts a counting `step` of the original into the instance; it must not hide ours.
    new.__dict__.pop("step", None)
    # And it warns if the original has taken no step before it: it never will.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    return new


def _names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None) -> Names:
    """A name for every parameter of the optimizer: ranks find each other's gradients by it."""
    ours = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return dict(numbered(optimizer))
    named = list(named_parameters)
    if any(not isinstance(item, tuple) or len(item) != 2 for item in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    if not named and ours:
        return _names(optimizer, None)
    doubled = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if doubled:
        raise ValueError(
            f"parameter names in named_parameters must be unique, but these come twice: {', '.join(doubled)}"
        )
    name_of = {p: name for name, p in named}
    unnamed = [p for p in ours if p not in name_of]
    if unnamed:
        shapes = ", ".join(str(tuple(p.shape)) for p in unnamed[:5])
        raise ValueError(
            f"named_parameters was specified, but {len(unnamed)} of the optimizer's parameters are not in it "
            f"(shapes: {shapes}). Name all of them, or leave named_parameters out."
        )
    return {p: name_of[p] for p in ours}


def _groups(groups: Any, parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The parameters that are to be reduced together; those in no list stay alone."""
    if groups is None:
        return []
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise ValueError("groups must be a positive integer or a list of lists of parameters.")
        trained = [p for p in parameters if p.requires_grad]
        return [list(part) for part in split_list(trained, groups)]
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError("groups must be a positive integer or a list of lists of parameters.")
    members = [p for group in groups for p in group]
    if any(not isinstance(p, torch.Tensor) for p in members):
        raise ValueError("groups must consist of lists of torch.Tensor.")
    if len({id(p) for p in members}) != len(members):
        raise ValueError("a parameter is in more than one group: put it into one only.")
    return [[p for p in group if p.requires_grad] for group in groups]


class _Twin(torch.optim.Optimizer):
    """Shares its parameter groups and state with the optimizer it was made from, for ever."""

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        groups, state = self.param_groups, self.state
        super().load_state_dict(*args, **kwargs)
        # torch makes new objects. But a scheduler may hold the original optimizer, and must go on changing our rates.
        for old, new in zip(groups, self.param_groups, strict=True):
            old.clear()
            old.update(new)
        loaded = dict(self.state)
        state.clear()
        state.update(loaded)
        self.param_groups, self.state = groups, state


def local_step(optimizer: torch.optim.Optimizer) -> None:
    """The step of the user's optimizer, on what gradients there are: nothing is reduced."""
    cls: Any = type(optimizer)
    # What `_subclass` made has the user's class behind the mixin.
    (cls.__bases__[1] if isinstance(optimizer, _Twin) else cls).step(optimizer)


class _DistributedOptimizer(_Twin):
    """What is put before the user's optimizer class."""

    _reducer: Reducer
    _skip: bool

    def _distribute(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._skip = False
        # A set without us trains without us; a world of one has nobody to reduce with, unless it may grow.
        alone = basics.size() == 1 and not basics.elastic_enabled()
        if alone or not reducer.process_set.included():
            return
        reducer.watch(self)

    @property
    def _parameter_names(self) -> Names:
        """Horovod's: programs reach for it."""
        return self._reducer.names

    @property
    def backward_passes_per_step(self) -> int:
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes after how many backward passes gradients are reduced; counting starts anew."""
        self._reducer.set_passes(passes)

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Has `hook(state, bucket)` reduce each gradient, as with torch's DDP: it gives a future of the averaged one."""
        self._reducer.take_hook(state, hook)

    def state_dict(self) -> dict[str, Any]:
        """That of the user's optimizer; and, if gradients are compressed, what this rank still owes of them."""
        state = super().state_dict()
        way = self._reducer.way
        if way is not None and (remembered := way.remembered()):
            state[REMEMBERED] = remembered
        return state

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        self._reducer.forget()
        ours = {key: value for key, value in state_dict.items() if key != REMEMBERED}
        super().load_state_dict(ours, *args, **kwargs)
        if REMEMBERED in state_dict and self._reducer.way is not None:
            self._reducer.way.remember(state_dict[REMEMBERED])

    def synchronize(self) -> None:
        """Waits until every gradient is reduced. Backward has done so already, unless gradients came in another way."""
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step` does not synchronize: you have done it yourself."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward passes only add up gradients, and do not count: for all but the last of several batches."""
        with self._reducer.paused():
            yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        reducer = self._reducer
        if self._skip:
            if reducer.pending:
                raise AssertionError(
                    "optimizer.step() was called in skip_synchronize() while gradients are still being reduced. "
                    "Call optimizer.synchronize() first."
                )
            if reducer.finished:
                reducer.synchronize()
        elif closure is None or reducer.pending or reducer.finished:
            if reducer.synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced a second time. Use `with "
                    "optimizer.skip_synchronize(): optimizer.step()`.",
                    stacklevel=2,
                )
            self.synchronize()
        reducer.synchronized = False
        reducer.steps += 1
        if closure is None:
            # All ranks have the gradients at this moment: what each of them did since the last one can be compared.
            watching.mark_step()
            return super().step(closure)
        loss = super().step(self._reduced(closure))
        watching.mark_step()
        return loss

    def _reduced(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed by waiting for the gradients it made."""

        def run() -> Any:
            loss = closure()
            if self._reducer.finished or (self._reducer.pending and not self._skip):
                self.synchronize()
                self._reducer.synchronized = False
            return loss

        return run

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._reducer.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). Gradients that are being reduced must not be changed."
            )
        super().zero_grad(*args, **kwargs)
        self._reducer.zeroed()
        self._reducer.keep_shared()


class _AdasumOptimizer(_Twin):
    """Each rank takes its own step; what the steps changed is combined by Adasum."""

    _named: Names
    _compression: Any
    _watch: checks.Watch
    _epoch: int
    _steps: int

    @property
    def _parameter_names(self) -> Names:
        """Horovod's: programs reach for it."""
        return self._named

    def _distribute(self, names: Names, compression: Any) -> None:
        self._named = names
        self._compression = compression
        self._watch = checks.Watch(global_process_set)
        self._epoch = epoch()
        self._steps = 0
        for p in names:
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Has no effect: gradients add up until `step`."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Has no effect: gradients add up until `step`."""
        yield

    def synchronize(self) -> None:
        """Has no effect: it is the change of the parameters that is reduced, in `step`."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("skip_synchronize is not supported when using the Adasum optimizer.")
        yield  # a context manager by its signature

    def _compare_notes(self) -> None:
        """What `Reducer` does with gradients; here the step is the round."""
        if self._epoch != epoch():
            # The ranks of an elastic job are others.
            self._epoch, self._steps = epoch(), 0
            self._watch.begin_anew()
        if self._watch.next_round():
            first = self._watch.rounds == 1
            trained = {p: name for p, name in self._named.items() if p.requires_grad}
            self._watch.compare(
                of_start(trained, self, self._steps)
                if first
                else of_round(trained, self, self._steps, self._watch.rounds)
            )
        self._steps += 1

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        self._named = {**dict(numbered(self)), **self._named}
        self._compare_notes()
        starts = {p: p.detach().clone() for p in self._named if p.requires_grad}
        loss = super().step(closure)
        with torch.no_grad():
            flying = []
            for p, start in starts.items():
                packed, context = self._compression.compress(p.detach() - start)
                handle = _eager.in_place_async("allreduce", packed, global_process_set, self._named[p], Adasum)
                flying.append((p, handle, context))
            for p, handle, context in flying:
                p.copy_(starts[p]).add_(self._compression.decompress(wait(handle), context))
        watching.mark_step()
        return loss
