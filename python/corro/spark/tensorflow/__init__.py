"""TensorFlow's data service in the tasks of a Spark application: `corro.spark.tensorflow.compute_worker`."""
