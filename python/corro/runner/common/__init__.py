"""Names that Horovod keeps under `horovod.runner.common`."""
