"""The shared cases, for each front."""

import pytest
from cases import cases_for
from fronts import FRONTS


@pytest.mark.parametrize(
    ("front", "case"),
    [pytest.param(front, case, id=f"{front.name}-{case.__name__}") for front in FRONTS for case in cases_for(front)],
)
def test_case(front, case):
    case(made(front))


_made = {}


def made(front):
    if front not in _made:
        _made[front] = front()
    return _made[front]
