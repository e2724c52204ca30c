"""`JaxEstimator`: a model of JAX's (Flax, or plain functions) as a stage of a Spark pipeline."""

from corro.spark.jax.estimator import JaxEstimator, JaxModel

__all__ = ["JaxEstimator", "JaxModel"]
