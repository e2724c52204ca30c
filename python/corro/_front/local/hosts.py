"""The ranks of this rank's host, as a process set."""

from __future__ import annotations

from corro._front import basics
from corro._front.objects import gather_numbers
from corro._front.process_sets import ProcessSet, add_process_set, global_process_set, ids_and_ranks, process_set_by_id


def host_set(hierarchy: str | ProcessSet | None) -> ProcessSet | None:
    """What `hierarchy=` asks for: the ranks that average after each step. All ranks of the job must ask for the same.

    "host" makes a process set for each host of several ranks, unless there is one.
    """
    if hierarchy is None or isinstance(hierarchy, ProcessSet):
        return hierarchy
    if hierarchy != "host":
        raise ValueError(f'hierarchy={hierarchy!r}: must be "host", or a process set.')
    if not basics.is_homogeneous():
        raise ValueError(
            'hierarchy="host" needs the same number of ranks on each host; or give the process set of this host\'s ranks.'
        )
    hosts: dict[int, list[int]] = {}
    for rank, host in enumerate(gather_numbers([basics.cross_rank()], "local.hosts")):
        hosts.setdefault(host, []).append(rank)
    mine = None
    for ranks in hosts.values():
        if len(ranks) == 1:
            continue
        known = next((number for number, members in ids_and_ranks().items() if members == ranks), None)
        if known is not None:
            found = global_process_set if known == 0 else process_set_by_id(known)
        else:
            found = add_process_set(ranks)
        if basics.rank() in ranks:
            mine = found
    return mine
