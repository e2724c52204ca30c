"""TensorFlow's data service on Spark: `compute_worker`."""
