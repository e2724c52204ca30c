"""`tf.data` service beside a training: `compute_service` for the training, `compute_worker` for machines that compute."""
