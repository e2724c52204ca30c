"""What a rank may ask about the Spark task that it lives in."""

from __future__ import annotations

from corro import _native

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """The addresses of the GPUs that Spark has given to this rank's task; empty if Spark was not told of any.

    Spark gives GPUs to tasks where `spark.task.resource.gpu.amount` and its kin are set. All GPUs of the host can be seen by
    the rank: choose one of these, as in `torch.cuda.set_device(int(get_available_devices()[0]))`.

    Example:
        >>> from corro.spark.task import get_available_devices
        >>> get_available_devices()
        []
    """
    given = _native.setting("SPARK_DEVICES") or ""
    return [address for address in given.split(",") if address]
