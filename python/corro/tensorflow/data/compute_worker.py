"""A job of data service workers: `corro run -np 4 python -m corro.tensorflow.data.compute_worker CONFIGFILE`.

The first rank writes CONFIGFILE, with which trainings find the workers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from corro._front import basics
from corro._front.objects import broadcast_object
from corro.tensorflow.data.compute_service import ComputeService, TfDataServiceConfig, compute_worker_fn


def main(
    dispatchers: int = 1, dispatcher_side: str = "compute", configfile: str | None = None, timeout: int = 60
) -> None:
    """Runs the worker of this rank until the training is over."""
    basics.init()
    rank, size = basics.rank(), basics.size()
    if size % dispatchers:
        raise ValueError(f"number of processes ({size}) must be a multiple of number of dispatchers ({dispatchers})")
    config = None
    if rank == 0:
        service = ComputeService(dispatchers, size // dispatchers)
        config = TfDataServiceConfig(
            dispatchers, size // dispatchers, dispatcher_side, service.addresses, service.key, timeout
        ).to_dict()
    found = TfDataServiceConfig.from_dict(broadcast_object(config, 0, "compute_worker_config"))
    if rank == 0 and configfile:
        found.write(configfile)
    compute_worker_fn(found)


def _by_command_line(main: Callable[..., None], about: str | None) -> None:
    """Calls `main` with what the command line says. Workers on Spark take the same words."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configfile", metavar="CONFIGFILE", help="the file that trainings read")
    parser.add_argument("--dispatchers", type=int, default=1, help="how many dispatchers (default: %(default)s)")
    parser.add_argument(
        "--dispatcher-side",
        default="compute",
        choices=["compute", "training"],
        help="where dispatchers run (default: %(default)s)",
    )
    parser.add_argument("--timeout", type=int, default=60, help="seconds to wait for others (default: %(default)s)")
    main(**vars(parser.parse_args()))


if __name__ == "__main__":
    _by_command_line(main, __doc__)
