"""Names that Horovod keeps under `horovod.common`; what they stand for lives in `corro._front`."""
