"""Names that Horovod keeps under `horovod.runner.elastic`: which hosts an elastic job may use.

The driver itself, which starts workers and deals out ranks, is in `crates/corro-launch`.
"""
