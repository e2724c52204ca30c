"""A sampler whose samples are neither lost nor repeated when the number of ranks changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from corro._front import basics
from corro._front.objects import allgather_object
from corro._front.sampler import Order, samples_each, share


class ElasticSampler(torch.utils.data.Sampler):
    """Deals a dataset to the ranks, and remembers what has been processed in the epoch.

    Call `record_batch` after each batch, with the batch size of the loader, and `set_epoch` between epochs. Put the sampler
    into the `TorchState`: what it remembers must be of the same moment as the model.

    At the end of an epoch a few samples are repeated if the ranks would not get equally many otherwise. With `pad=False`
    they are not; then some ranks may have a batch less than others, and should call `hvd.join()` at the end of the epoch.

    Example:
        >>> dataset = list(range(8))
        >>> sampler = hvd.elastic.ElasticSampler(dataset, shuffle=False)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
        >>> for number, batch in enumerate(loader):
        ...     sampler.record_batch(number, batch_size=2)
        >>> sampler.set_epoch(1)
        >>> len(sampler)
        4
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0, pad: bool = True) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.pad = pad
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.num_replicas, self.rank = 1, 0
        self._order = Order(len(dataset), shuffle)
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: nothing of it has been processed.

        A program that says so when it begins an epoch, rather than when it has ended one, does it again after a change of
        the ranks. Then the epoch goes on.
        """
        if self._resumed and epoch == self.epoch:
            return
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Says that every rank has processed a batch of `batch_size` samples."""
        if self.processed_indices:
            raise ValueError("record_batch after record_indices in the same epoch: use one of them only.")
        self._resumed = False
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Iterable[int]) -> None:
        """Says that this rank has processed these samples, whatever the others do. They learn it at the next commit."""
        if self.processed_num:
            raise ValueError("record_indices after record_batch in the same epoch: use one of them only.")
        self._resumed = False
        self.processed_indices.update(int(index) for index in indices)

    def share_indices(self) -> None:
        """Called by a commit, on all ranks: what one has recorded with `record_indices`, all know then."""
        if self.processed_num == 0 and basics.is_initialized() and basics.size() > 1:
            self.processed_indices = set().union(*allgather_object(self.processed_indices, "elastic.sampler"))

    def state_dict(self) -> dict[str, Any]:
        """What has been processed, for a checkpoint."""
        state: dict[str, Any] = {"epoch": self.epoch, "processed_num": self.processed_num}
        if self.processed_indices:
            state["processed_indices"] = sorted(self.processed_indices)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken, with the ranks there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Deals out what is left of the epoch, to the ranks there are now."""
        if basics.is_initialized():
            self.num_replicas, self.rank = basics.size(), basics.rank()
        self.remaining_indices = self._order.left(self.seed + self.epoch, self.processed_num, self.processed_indices)
        left = len(self.remaining_indices)
        self.num_samples = samples_each(left if self.pad else max(left - self.rank, 0), self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas if self.pad else left
        self._resumed = bool(self.processed_num or self.processed_indices)

    def __iter__(self) -> Iterator[int]:
        self._resumed = False
        return iter(share(self.remaining_indices, self.rank, self.num_replicas, self.pad))

    def __len__(self) -> int:
        return self.num_samples
