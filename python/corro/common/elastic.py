"""Horovod's place for elastic state."""

from corro._front.elastic import ObjectState, State, notifications, run_fn

# Horovod's name.
notification_manager = notifications

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]
