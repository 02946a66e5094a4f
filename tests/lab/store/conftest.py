import pytest

from asymtrain.lab.store import Store


@pytest.fixture
def store(tmp_path):
    """An empty one, open for writing."""
    with Store(tmp_path / "s.sqlite") as store:
        yield store
