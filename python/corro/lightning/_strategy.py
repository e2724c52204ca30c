"""The strategy itself: what Lightning asks of one, answered by `corro.torch`. Knows Lightning by its public classes only."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

import corro.torch as hvd
from corro._front import basics
from corro.lightning import _metrics

# What Lightning calls reductions, in strings or as torch.distributed's.
_OPS = {
    "mean": hvd.Average,
    "avg": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}


def installed() -> str:
    """Under which name the program uses Lightning: the one that is imported, else the one that is there."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if name in sys.modules:
            return name
    for name in ("lightning", "pytorch_lightning"):
        if importlib.util.find_spec(name) is not None:
            return "lightning.pytorch" if name == "lightning" else name
    raise ImportError("corro.lightning needs Lightning 2.0 or newer. Install it with `pip install lightning`.")


@functools.cache
def strategy_for(package: str) -> type[Strategy]:
    """The strategy for `lightning.pytorch`, or for `pytorch_lightning`: packages of the same name whose classes do not mix.

    Raises `ImportError` if the package is not installed.

    Example:
        >>> from corro.lightning import strategy_for
        >>> strategy = strategy_for("lightning")()
    """
    package = "lightning.pytorch" if package == "lightning" else package
    strategies = importlib.import_module(f"{package}.strategies")
    fabric = importlib.import_module("lightning.fabric" if package == "lightning.pytorch" else "lightning_fabric")
    environment_class: Any = importlib.import_module(f"{fabric.__name__}.plugins.environments").ClusterEnvironment
    environment = type("CorroEnvironment", (_Environment, environment_class), {"__doc__": _Environment.__doc__})
    members = {"__doc__": _Strategy.__doc__, "__module__": "corro.lightning", "_environment": environment}
    strategy: Any = type("CorroStrategy", (_Strategy, strategies.ParallelStrategy), members)
    strategies.StrategyRegistry.register(
        "corro", strategy, description="Gradients are averaged by Corro", override=True
    )
    return strategy


class _Environment:
    """Who this process is, as Corro knows it. `corro run`, mpiexec, srun or torchrun has started it."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return basics.size()

    def set_world_size(self, size: int) -> None:
        """It is as it is."""

    def global_rank(self) -> int:
        return basics.rank()

    def set_global_rank(self, rank: int) -> None:
        """It is as it is."""

    def local_rank(self) -> int:
        return basics.local_rank()

    def node_rank(self) -> int:
        return basics.cross_rank()


class _Strategy:
    """Trains on all ranks of a Corro job, each with a device of its own, and averages their gradients.

    Options are those of `corro.torch.DistributedOptimizer`: `compression`, `op`, `groups`, `gradient_predivide_factor`,
    `sparse_as_dense`. Gradient accumulation is Lightning's (`accumulate_grad_batches`).

    Example:
        >>> import lightning as L
        >>> from corro.lightning import CorroStrategy
        >>> strategy = CorroStrategy(compression=hvd.Compression.bf16)
        >>> trainer = L.Trainer(strategy=strategy, accelerator="cpu", max_epochs=1, logger=False)
    """

    _environment: Any
    # Lightning's, of the class that stands behind this one.
    accelerator: Any
    model: Any
    lightning_module: Any
    optimizers: Any
    lr_scheduler_configs: Any
    parallel_devices: Any
    _layer_sync: Any

    def __init__(
        self,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        **options: Any,
    ) -> None:
        basics.init()
        base: Any = super()
        base.__init__(accelerator, parallel_devices, self._environment(), checkpoint_io, precision_plugin)
        self._options = options

    @property
    def is_distributed(self) -> bool:
        return True

    @property
    def root_device(self) -> torch.device:
        devices = self.parallel_devices
        if not devices:
            raise RuntimeError("Lightning has not told the strategy which devices there are.")
        # Each rank sees all of its host's devices, or only its own.
        return devices[basics.local_rank() % len(devices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": basics.size(), "rank": basics.rank()}

    def set_world_ranks(self) -> None:
        """Called by the Trainer: from now on only rank 0 logs and writes."""
        importlib.import_module("lightning_utilities.core.rank_zero").rank_zero_only.rank = basics.rank()

    def setup(self, trainer: Any) -> None:
        if self._layer_sync is not None:
            self.model = _with_synced_norms(self.model)
        base: Any = super()
        base.setup(trainer)
        _metrics.connect(self.lightning_module)

    def model_to_device(self) -> None:
        self.model.to(self.root_device)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def setup_optimizers(self, trainer: Any) -> None:
        base: Any = super()
        base.setup_optimizers(trainer)
        self.optimizers = [self._setup_optimizer(optimizer) for optimizer in self.optimizers]

    def _setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        ours = {p for group in optimizer.param_groups for p in group["params"]}
        named = [(name, p) for name, p in self.lightning_module.named_parameters() if p in ours]
        # Parameters that are not the module's have no names to find each other by.
        names = named if len(named) == len(ours) else None
        return hvd.DistributedOptimizer(optimizer, names, **self._options)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Inside, backward passes only add up: what Lightning does for all but the last of accumulated batches."""
        with ExitStack() as stack:
            for optimizer in self.optimizers:
                if hasattr(optimizer, "no_sync"):
                    stack.enter_context(optimizer.no_sync())
            yield

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        op = _op(reduce_op)
        whole = tensor.to(torch.int32) if tensor.dtype == torch.bool else tensor
        return hvd.allreduce(whole.detach(), op=op)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all ranks, one behind the other along a new first dimension."""
        if sync_grads and tensor.requires_grad:
            return _AllGather.apply(tensor)
        return hvd.allgather(tensor.detach().unsqueeze(0).contiguous())

    def barrier(self, name: str | None = None) -> None:
        hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return hvd.broadcast_object(obj, src, name="lightning")


if TYPE_CHECKING:

    class Strategy(_Strategy, Any):
        """As checkers see it: its other half belongs to whichever Lightning it is for, so they take it for any class."""


class _AllGather(torch.autograd.Function):
    """Gathers, and sums the gradients of all ranks for what a rank has brought: as Lightning's own strategies do."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return hvd.allgather(tensor.unsqueeze(0).contiguous())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return hvd.allreduce(grad.contiguous(), op=hvd.Sum)[basics.rank()]


def _op(wanted: Any) -> int:
    """What Lightning asks for: a word, None for a sum, or an op of torch.distributed, whose name is the word."""
    word = "sum" if wanted is None else str(wanted).rsplit(".", 1)[-1].lower()
    if word not in _OPS:
        raise ValueError(f"CorroStrategy cannot reduce by {wanted!r}; it knows {', '.join(sorted(_OPS))}.")
    return _OPS[word]


def _with_synced_norms(module: torch.nn.Module) -> torch.nn.Module:
    """The module with `hvd.SyncBatchNorm` in place of every batch norm: `Trainer(sync_batchnorm=True)`."""
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, hvd.SyncBatchNorm):
        synced = hvd.SyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        # The very same tensors: an optimizer may have them already.
        synced._parameters, synced._buffers, synced.training = module._parameters, module._buffers, module.training
        return synced
    for name, child in module.named_children():
        setattr(module, name, _with_synced_norms(child))
    return module
