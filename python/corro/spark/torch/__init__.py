"""`TorchEstimator`: a model of PyTorch's as a stage of a Spark pipeline."""

from corro.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
