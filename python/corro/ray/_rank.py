"""What an actor of an elastic job starts as a rank: `python -m corro.ray._rank POST [GPUS ON_NODE]`.

`POST` is the office that `ray_logger.log` hands its letters to; `GPUS` are those that Ray has given to the actor.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import cloudpickle

from corro import _native
from corro._tasks import post
from corro.ray import ray_logger
from corro.ray._devices import visible
from corro.runner import worker


class _Letters:
    """What `ray_logger` takes for a queue."""

    def __init__(self, office: str) -> None:
        self._office = office

    def put(self, values: Any) -> None:
        post.send(self._office, cloudpickle.dumps(values))


def main() -> None:
    office, *gpus = sys.argv[1:]
    if gpus:
        own, on_node = gpus
        local_rank = int(_native.setting("LOCAL_RANK") or 0)
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(own.split(","), int(on_node), local_rank)
    ray_logger.configure(_Letters(office))
    worker.main()


if __name__ == "__main__":
    main()
