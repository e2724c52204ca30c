"""Data modules, where programs for Horovod's estimators look for them."""

from corro.spark.common.datamodule import NVTabularDataModule, PetastormDataModule

__all__ = ["NVTabularDataModule", "PetastormDataModule"]
