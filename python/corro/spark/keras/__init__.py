"""`KerasEstimator`: a model of Keras' (3, on TensorFlow, PyTorch or JAX) as a stage of a Spark pipeline."""

from corro.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
