"""What is told to those who watch a job."""

from __future__ import annotations

import pytest

import corro.torch as hvd
from corro import _native
from corro._front import watching


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, float]]:
    values: list[tuple[int, str, float]] = []
    monkeypatch.setattr(_native, "is_watched", lambda: True)
    monkeypatch.setattr(_native, "log_value", lambda *value: values.append(value))
    return values


def test_numbers_tensors_and_arrays_are_values(told: list[tuple[int, str, float]]) -> None:
    import numpy as np
    import torch

    with_gradient = torch.ones(1, requires_grad=True) * 3
    hvd.log(step=7, a=1, b=np.float32(2), c=with_gradient)
    assert told == [(7, "a", 1.0), (7, "b", 2.0), (7, "c", 3.0)]
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        hvd.log(step=7, a=torch.ones(2))


def test_nobody_watches_and_nothing_is_converted() -> None:
    assert not _native.is_watched()
    hvd.log(step=1, value=object())
    watching.mark_step()


def test_what_lightning_logs(told: list[tuple[int, str, float]]) -> None:
    pytest.importorskip("lightning")
    from corro.lightning import CorroLogger

    CorroLogger().log_metrics({"loss": 0.5, "epoch": 3}, step=11)
    assert told == [(11, "loss", 0.5)]
