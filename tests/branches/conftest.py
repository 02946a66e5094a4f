import pytest
import torch
from branch_zoo import CASES, Case


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_itemcollected(item: pytest.Item) -> None:
    # Of the zoo's `Tied`, which calls its one block twice; all other warnings stay errors.
    item.add_marker(pytest.mark.filterwarnings("ignore:one forward calls the layer 'block' 2 times"))
