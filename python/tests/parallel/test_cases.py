"""The shared cases, for each front."""

import pytest
from cases import CASES
from fronts import FRONTS


@pytest.fixture(scope="module", params=FRONTS, ids=lambda front: front.name)
def front(request):
    return request.param()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_case(front, case):
    case(front)
