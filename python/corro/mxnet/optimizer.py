"""`DistributedOptimizer` and Gluon's `DistributedTrainer`: gradients of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import mxnet as mx

from corro._front import basics
from corro._front.arguments import Average, Sum, set_size
from corro._front.process_sets import ProcessSet, global_process_set
from corro.common.util import split_list
from corro.mxnet._watching import TrainingWatch
from corro.mxnet.compression import Compression
from corro.mxnet.mpi_ops import allreduce_, grouped_allreduce_

__all__ = ["DistributedOptimizer", "DistributedTrainer"]


def _averages_here() -> bool:
    """Whether a sum is divided by the optimizer, as Horovod does where NCCL can't average."""
    return basics.rocm_built() or basics.nccl_built() < 21000


def _check_factor(factor: float) -> None:
    if factor != 1.0 and basics.rocm_built():
        raise ValueError("gradient_predivide_factor not supported yet with ROCm")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that reduces gradients over all ranks before it applies them. Everything else is the optimizer's.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
        >>> weight = mx.nd.ones((2,))
        >>> optimizer.update(0, weight, mx.nd.ones((2,)) * 2 * hvd.rank(), None)
        >>> weight.asnumpy()
        array([0.9, 0.9], dtype=float32)
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        _check_factor(gradient_predivide_factor)
        self._optimizer = optimizer
        self._predivide = gradient_predivide_factor
        self._num_groups = num_groups
        self._process_set = process_set
        self._op = Average
        if _averages_here():
            self._op = Sum
            self._optimizer.rescale_grad *= gradient_predivide_factor / max(set_size(process_set), 1)
        self._watch = TrainingWatch(process_set)
        # What is trained, by index: they come one by one.
        self._weights: dict[Any, tuple[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The optimizer's own."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The optimizer's own."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduces the gradients, and takes the optimizer's step."""
        self._reduce(index, weight, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """The same, for weights of 16 bits."""
        self._reduce(index, weight, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """The optimizer's own."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """The optimizer's own."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """The optimizer's own."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, weight: Any, grad: Any) -> None:
        if set_size(self._process_set) == 1 or not self._process_set.included():
            return
        several = isinstance(index, (tuple, list))
        weights = dict(zip(index, weight, strict=True)) if several else {index: weight}
        # A round is over when the first of them comes again.
        if next(iter(self._weights), None) in weights:
            self._watch.look(self._optimizer, list(self._weights.values()))
        self._weights.update({i: (f"with index {i}", one) for i, one in weights.items()})
        pairs = list(zip(index, grad, strict=True)) if several else [(index, grad)]
        _reduce_all(pairs, self._op, self._predivide, self._num_groups if several else 0, self._process_set)


def _reduce_all(
    pairs: Sequence[tuple[Any, Any]], op: int, predivide: float, groups: int, process_set: ProcessSet
) -> None:
    """Reduces gradients in place. Where the optimizer divides, so does it multiply by what is divided here."""
    factors: dict[str, Any] = {"prescale_factor": 1.0 / predivide}
    if op == Average:
        factors["postscale_factor"] = predivide
    if groups > 0:
        for group in split_list(list(pairs), min(groups, len(pairs))):
            if group:
                names = "_".join((str(group[0][0]), str(group[-1][0])))
                tensors = [gradient for _, gradient in group]
                grouped_allreduce_(tensors, name=names, op=op, process_set=process_set, **factors)
        return
    for place, (name, gradient) in enumerate(pairs):
        allreduce_(gradient, name=str(name), priority=-place, op=op, process_set=process_set, **factors)


class DistributedTrainer(mx.gluon.Trainer):
    """Gluon's `Trainer`, with gradients of all ranks. Give different prefixes to several trainers of a program.

    Example:
        >>> net = mx.gluon.nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        _check_factor(gradient_predivide_factor)
        self._compression = compression
        self._process_set = process_set
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn(
                "DistributedTrainer needs a plain optimizer, not a DistributedOptimizer; it uses the one inside.",
                stacklevel=2,
            )
        if isinstance(params, (dict, mx.gluon.parameter.ParameterDict)):
            params = [params[key] for key in sorted(params.keys())]
        elif isinstance(params, (list, tuple)):
            params = sorted(params, key=lambda parameter: parameter.name)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._predivide = gradient_predivide_factor
        self._prefix = prefix or ""
        self._num_groups = num_groups
        self._op = Average
        if _averages_here():
            self._op = Sum
            self._scale *= gradient_predivide_factor / max(set_size(process_set), 1)
        self._watch = TrainingWatch(process_set)

    def _allreduce_grads(self) -> None:
        if set_size(self._process_set) == 1 or not self._process_set.included():
            return
        trained = [(i, parameter) for i, parameter in enumerate(self._params) if parameter.grad_req != "null"]
        pairs = [(f"{self._prefix}{i}", gradient) for i, parameter in trained for gradient in parameter.list_grad()]
        packed = [(name, gradient, *self._compression.compress(gradient)) for name, gradient in pairs]
        sent = [(name, small) for name, _, small, _ in packed]
        _reduce_all(sent, self._op, self._predivide, self._num_groups, self._process_set)
        for _, gradient, small, context in packed:
            if small is not gradient:
                gradient[:] = self._compression.decompress(small, context)
        self._watch.look(
            self._optimizer, [(_own_name(parameter, i), parameter.list_data()[0]) for i, parameter in trained]
        )


def _own_name(parameter: Any, position: int) -> str:
    """The same on all ranks: a parameter's name in full counts what else a rank has made before."""
    return f"{parameter.name.rsplit('_', 1)[-1]} (number {position + 1})"
