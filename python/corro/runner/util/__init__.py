"""Names that Horovod keeps under `horovod.runner.util`: threads, streams and addresses."""
