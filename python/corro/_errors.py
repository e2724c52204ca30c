"""The exceptions of Corro, under the names Horovod's users know. Elastic training treats the first two as "try again"."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed, on every rank that took part: a peer is lost, ranks disagree, or the job was shut down.

    `blamed_rank` is the rank whose fault it is, where that is known.

    Example:
        >>> try:
        ...     hvd.init()
        ... except hvd.HorovodInternalError as error:
        ...     print(f"because of rank {error.blamed_rank}: {error}")
    """

    # Whether elastic training goes on from the last commit after it.
    retryable = True
    # The rank whose fault it is, where that is known.
    blamed_rank: int | None = None


class NotRetryableError(HorovodInternalError):
    """A collective failed for a reason that stays: the ranks disagree about what it is, or Corro has a bug."""

    retryable = False


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed; `hvd.elastic.run` catches it and goes on with the new ones.

    `skip_sync` says that hosts only went away, so that no state needs to be sent.

    Example:
        >>> hvd.HostsUpdatedInterrupt(skip_sync=True).skip_sync
        True
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one this package was made for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


class UnregisteredProcessSet(ValueError, TypeError):
    """An operation was given a process set that is not registered (never was, or was removed)."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}. "
        f"Reinstall one of them so that both agree."
    )


class NotInitializedError(HorovodInternalError, ValueError):
    """A call before `init` or after `shutdown`."""

    retryable = False
