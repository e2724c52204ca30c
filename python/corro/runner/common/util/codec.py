"""Any Python object as a line of text: for command lines and variables.

Loading it runs what it says, as with every pickle: only load text that you wrote yourself. Corro reads none from a socket.
"""

from __future__ import annotations

import base64
from typing import Any, Literal, overload

import cloudpickle

__all__ = ["dumps_base64", "loads_base64"]


@overload
def dumps_base64(obj: Any, to_ascii: Literal[True] = True) -> str: ...
@overload
def dumps_base64(obj: Any, to_ascii: Literal[False]) -> bytes: ...
@overload
def dumps_base64(obj: Any, to_ascii: bool) -> str | bytes: ...
def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """The object as base64: text, or bytes without `to_ascii`."""
    encoded = base64.b64encode(cloudpickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """The object that `dumps_base64` was given."""
    return cloudpickle.loads(base64.b64decode(encoded))
