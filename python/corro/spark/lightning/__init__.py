"""`TorchEstimator` for modules of PyTorch Lightning's, as a stage of a Spark pipeline."""

from corro.spark.lightning.estimator import LightningEstimator, LightningModel, TorchEstimator, TorchModel

__all__ = ["LightningEstimator", "LightningModel", "TorchEstimator", "TorchModel"]
