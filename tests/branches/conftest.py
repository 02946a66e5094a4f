import pytest
import torch
from branch_zoo import CASES, Case


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
