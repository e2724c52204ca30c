"""A sampler whose samples are neither lost nor repeated when the number of ranks changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from corro._front import basics
from corro._front.sampler import Remaining


class ElasticSampler(torch.utils.data.Sampler):
    """Deals a dataset to the ranks, and remembers what has been processed in the epoch.

    Call `record_batch` after each batch, and `set_epoch` at the end of each epoch.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: nothing of it has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Says that every rank has processed a batch of `batch_size` samples."""
        self.record_indices_count(batch_size * self.num_replicas)

    def record_indices_count(self, count: int) -> None:
        self.processed_num += count

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals out what is left of the epoch, to the ranks there are now."""
        self.num_replicas = basics.size()
        self.rank = basics.rank()
        left = Remaining(len(self.dataset), self.shuffle, self.seed + self.epoch, self.processed_num)
        self.remaining_indices = left.indices
        self.num_samples = left.samples_each(self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = list(self.remaining_indices)
        # Every rank must see the same number: the head is repeated, several times if there are fewer samples than ranks.
        while indices and len(indices) < self.total_size:
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
