"""Horovod's place for process sets."""

from corro._front.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    ids_and_ranks,
    process_set_by_id,
    remove_process_set,
)

# Horovod's name.
get_process_set_ids_and_ranks = ids_and_ranks


def is_process_set_included(process_set_id: int = 0) -> bool:
    """Whether this rank belongs to the set with this number."""
    return bool(process_set_by_id(process_set_id).included())


__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "is_process_set_included",
    "remove_process_set",
]
