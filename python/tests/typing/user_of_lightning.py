"""A program that uses every public name of `corro.lightning`. It is never run: type checkers read it, in their strict modes.

`test_typing.py` has them do so, and looks whether a name is missing here.
"""

from typing import assert_type

import lightning
import pytorch_lightning
import torch

import corro.lightning as ours
import corro.torch as hvd


def training(module: lightning.LightningModule) -> None:
    strategy = ours.CorroStrategy(compression=hvd.Compression.fp16)
    assert_type(strategy.root_device, torch.device)
    assert_type(strategy.distributed_sampler_kwargs, dict[str, int])
    trainer = lightning.Trainer(strategy=strategy, logger=ours.CorroLogger(), max_epochs=1)
    trainer.fit(module)


def training_by_the_other_name() -> None:
    strategy, logger = ours.strategy_for("pytorch_lightning"), ours.logger_for("pytorch_lightning")
    pytorch_lightning.Trainer(strategy=strategy(groups=4), logger=logger(), max_epochs=1)


class Mine(ours.CorroStrategy):
    def barrier(self, name: str | None = None) -> None:
        print(name)
