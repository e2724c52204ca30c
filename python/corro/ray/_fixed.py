"""The workers of a fixed job: actors in a placement group, which stay between calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from corro._errors import HorovodInternalError
from corro.ray._placement import Placement, Shape
from corro.ray._seats import Seat, meeting_place, seats
from corro.ray.worker import BaseHorovodWorker

__all__ = ["FixedJob", "culprit"]

# How long workers may take to answer at first. Ray may have to make their runtime environments.
_START_SECONDS = 600.0
# How long the rank that is to blame may take to be seen, after others have failed because of it.
_BLAME_SECONDS = 10.0


class FixedJob:
    """Has workers from `start` to `shutdown`."""

    def __init__(self, placement: Placement, workers: list[Any]) -> None:
        self._placement = placement
        self.workers = workers
        self._seats: list[Seat] = []

    @classmethod
    def start(
        cls,
        shape: Shape,
        settings: Any,
        use_current_group: bool,
        executable: tuple[Any, list[Any], dict[str, Any]],
        variables: Mapping[str, str],
    ) -> FixedJob:
        placement = Placement(shape, use_current_group, settings.placement_group_timeout_s)
        actor: Any = ray.remote(BaseHorovodWorker)
        count = shape.workers
        workers = [
            actor.options(**placement.options(rank)).remote(world_rank=rank, world_size=count) for rank in range(count)
        ]
        job = cls(placement, workers)
        try:
            job._seat(max(_START_SECONDS, settings.timeout_s), settings.nics, variables, wants_gpus=shape.gpus > 0)
            job._await([worker.start_executable.remote(*executable) for worker in workers])
        except BaseException:
            job.shutdown()
            raise
        return job

    def _seat(self, seconds: float, nics: set[str] | None, variables: Mapping[str, str], wants_gpus: bool) -> None:
        """Tells every worker who it is, and where all meet."""
        places = [worker.whereabouts.remote() for worker in self.workers]
        _, late = ray.wait(places, num_returns=len(places), timeout=seconds)
        if late:
            raise GetTimeoutError(
                f"{len(late)} of {len(places)} workers have not answered within {seconds:g} s, first of them that of rank "
                f"{places.index(late[0])}: Ray may still be making their runtime environment; its logs say more."
            )
        found = self._await(places)
        self._seats = seats([node for node, *_ in found])
        _, address, port, _ = found[0]
        shared = {**variables, **meeting_place(address, port)}
        if nics:
            shared["HOROVOD_GLOO_IFACE"] = ",".join(sorted(nics))
        visible = _visible([(node, gpus) for node, _, _, gpus in found]) if wants_gpus else {}
        self._await(
            [
                worker.update_env_vars.remote({**shared, **visible.get(seat.node, {}), **seat.variables()})
                for worker, seat in zip(self.workers, self._seats, strict=True)
            ]
        )

    def execute(self, fn: Callable[[Any], Any], callbacks: Any = None) -> list[Any]:
        """Callbacks are for elastic jobs."""
        return self._await(self.execute_remote(fn))

    def execute_remote(self, fn: Callable[[Any], Any]) -> list[Any]:
        # The function travels once for all workers that share a node.
        shared = ray.put(fn)
        return [worker.execute.remote(shared) for worker in self.workers]

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        return self._await([self.workers[0].execute.remote(fn)])[0]

    def shutdown(self) -> None:
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        self._placement.release()

    def _await(self, references: Sequence[Any]) -> list[Any]:
        """The results by rank, or what the rank raised that is to blame."""
        failed: dict[int, Exception] = {}
        waiting = list(references)
        blame_by: float | None = None
        while waiting and (blame_by is None or time.monotonic() < blame_by):
            done, waiting = ray.wait(waiting, timeout=None if blame_by is None else 0.2)
            for reference in done:
                try:
                    ray.get(reference)
                except Exception as error:
                    failed[list(references).index(reference)] = error
            if failed:
                blame_by = blame_by or time.monotonic() + _BLAME_SECONDS
                if culprit(failed) is not None:
                    break
        if failed:
            self._raise(culprit(failed) if culprit(failed) is not None else min(failed), failed)
        return list(ray.get(list(references)))

    def _raise(self, rank: int | None, failed: Mapping[int, Exception]) -> None:
        assert rank is not None
        error = failed[rank]
        where = f" on node {self._seats[rank].node}" if self._seats else ""
        who = f"rank {rank} of {max(1, len(self.workers))}{where}"
        if isinstance(error, RayActorError):
            text = f"{who} was lost: {error}. Call shutdown() and start() for new workers; elastic jobs go on (min_workers)."
            raise RayActorError(error.actor_id, text, error.actor_init_failed) from error
        if hasattr(error, "add_note"):  # from Python 3.11 on; the worker's name is in the text of the error anyway
            error.add_note(f"This was raised by {who}. Others may still wait for it: call shutdown() and start() anew.")
        raise error


def culprit(failed: Mapping[int, Exception]) -> int | None:
    """The lowest rank that did not fail because another one was gone; None if there is none yet."""
    return min((rank for rank, error in failed.items() if not isinstance(error, HorovodInternalError)), default=None)


def _visible(given: Sequence[tuple[str, list[str]]]) -> dict[str, dict[str, str]]:
    """Every worker sees all GPUs that the job has on its node, and takes the one of its local rank."""
    found: dict[str, list[str]] = {}
    for node, gpus in given:
        found.setdefault(node, []).extend(gpu for gpu in gpus if gpu not in found.get(node, []))
    return {node: {"CUDA_VISIBLE_DEVICES": ",".join(sorted(gpus, key=_number))} for node, gpus in found.items()}


def _number(gpu: str) -> tuple[int, str]:
    return (int(gpu), "") if gpu.isdigit() else (1 << 30, gpu)
