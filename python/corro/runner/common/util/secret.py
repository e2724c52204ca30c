"""A secret that the processes of a job share, and digests by which messages prove that they come from one of them.

Corro's own connections prove the job's secret by themselves, in `crates/corro-transport`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["DIGEST_LENGTH", "HOROVOD_SECRET_KEY", "SECRET_LENGTH", "check_digest", "compute_digest", "make_secret_key"]

# The variable in which programs hand the secret on. It is never passed to a rank on a command line.
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
SECRET_LENGTH = 32
DIGEST_LENGTH = hashlib.sha256().digest_size


def make_secret_key() -> bytes:
    """A new secret."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """What proves that who sent `message` knows `key`: HMAC with SHA-256."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Whether `digest` is that of `message`. Takes as long for a wrong one as for a right one."""
    return hmac.compare_digest(compute_digest(key, message), digest)
