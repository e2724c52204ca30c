"""What `corro.run` starts in each process: takes the call out of the job's store, makes it, and puts the result there."""

from __future__ import annotations

import cloudpickle

from corro import _native


def main() -> None:
    func, args, kwargs = cloudpickle.loads(_native.payload())
    _native.give_result(cloudpickle.dumps(func(*args, **kwargs)))


if __name__ == "__main__":
    main()
