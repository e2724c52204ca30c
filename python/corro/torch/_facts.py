"""What a rank states about its training with torch, for `_front.checks` to compare with the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from corro._front import checks
from corro._front.checks import MODEL, PARAMETER, STEPS, Facts


def of_start(parameters: Mapping[torch.Tensor, str], optimizer: torch.optim.Optimizer | None, steps: int) -> Facts:
    """Of the first round: what the model is, and where it starts from."""
    named = sorted((name, p) for p, name in parameters.items())
    facts: dict[tuple[str, str], Any] = {
        (MODEL, name): f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}" for name, p in named
    }
    facts.update({(PARAMETER, name): elements(p) for name, p in named})
    return facts | _of_optimizer(optimizer, steps)


def of_round(
    parameters: Mapping[torch.Tensor, str], optimizer: torch.optim.Optimizer | None, steps: int, round_number: int
) -> Facts:
    """Of a later round: a few parameters in turn, rates and steps."""
    facts: dict[tuple[str, str], Any] = _of_optimizer(optimizer, steps)
    for p, name in checks.in_turn(list(parameters.items()), round_number):
        facts[PARAMETER, name] = elements(p, round_number)
    return facts


def of_gradients(seen: Iterable[tuple[str, list[float]]]) -> int:
    """What gradients that no other rank has had a part in say of the data; 0 if nothing. `seen` are elements of them."""
    seen = sorted(seen)
    # All zeros come from any data: a layer that starts with zeros, say.
    return checks.digest(seen) if any(any(values) for _, values in seen) else 0


def elements(tensor: torch.Tensor, round_number: int = 0) -> list[float]:
    """A few elements of a tensor, wherever it is."""
    where = checks.positions(tensor.numel(), round_number)
    if not len(where):
        return []
    flat = tensor.detach().reshape(-1)
    return flat[where.start : where.stop : where.step].tolist()


def _of_optimizer(optimizer: torch.optim.Optimizer | None, steps: int) -> dict[tuple[str, str], Any]:
    facts: dict[tuple[str, str], Any] = {(STEPS, "taken"): steps}
    if optimizer is None:
        return facts
    # What the optimizer itself has counted comes from a checkpoint, perhaps on one rank only.
    for state in optimizer.state.values():
        if isinstance(state, Mapping) and "step" in state:
            facts[STEPS, "in the optimizer's state"] = int(state["step"])
        break
    return facts | checks.rates(optimizer.param_groups)
