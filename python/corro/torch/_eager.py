"""One collective on one tensor, or on a group, outside of any graph: no autograd, no compression; see `corro._front.ops`.

The names, the checks and the gradients are `mpi_ops`'s.
"""

from __future__ import annotations

from corro._front.ops import Ops
from corro.torch import _tensors

_ops = Ops(_tensors)
in_place, in_place_async, group_in_place_async = _ops.in_place, _ops.in_place_async, _ops.group_in_place_async
into_new, into_new_async, group_into_new_async = _ops.into_new, _ops.into_new_async, _ops.group_into_new_async
resized, resized_async, group_resized_async = _ops.resized, _ops.resized_async, _ops.group_resized_async
alltoall, alltoall_async = _ops.alltoall, _ops.alltoall_async
