"""The shared cases, for each front."""

import pytest
from cases import cases_for
from fronts import FRONTS

# Here, not in a test: some frameworks take longer to import than a test may.
MADE = [front() for front in FRONTS]


@pytest.mark.parametrize(
    ("front", "case"),
    [pytest.param(front, case, id=f"{front.name}-{case.__name__}") for front in MADE for case in cases_for(front)],
)
def test_case(front, case):
    case(front)
