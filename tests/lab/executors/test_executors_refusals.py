"""Executors that there are not: each is refused in one sentence that says what to do, before anything is written."""

import socket
import sys
from dataclasses import replace

import pytest
from executor_examples import examples

from asymtrain.errors import UsageError
from asymtrain.lab.executors import execute
from asymtrain.lab.store import Store
from invented_runs import invent


@pytest.fixture
def refused(tmp_path):
    def call(**options):
        with pytest.raises(UsageError) as caught:
            next(execute(examples("mlp", 1), store=tmp_path / "runs.sqlite", **options))
        assert list(tmp_path.iterdir()) == []
        return str(caught.value)

    return call


def test_a_function_that_workers_cannot_import(tmp_path):
    specs = [replace(spec, dataset="gone_module:function") for spec in examples("mlp", 1)]
    with pytest.raises(UsageError, match="gone_module cannot be imported"):
        next(execute(specs, store=tmp_path / "runs.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_stored_runs_need_no_function(tmp_path):
    spec = replace(examples("mlp", 1)[0], dataset="gone_module:function", epochs=1)
    run = invent(spec)
    with Store(tmp_path / "runs.sqlite") as store:
        store.add(run)
    assert list(execute([spec], store=tmp_path / "runs.sqlite")) == [run]


def test_address_without_ray(refused):
    assert refused(address="head:6379") == "--address needs a Ray cluster: add --executor ray"


def test_device_of_a_cluster(refused):
    assert "Ray chooses which GPU" in refused(executor="ray", device="cuda:1")


def test_ray_is_not_installed(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'pip install -e ".[ray]"' in refused(executor="ray")


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:port", "ray://", "head:99999"])
def test_malformed_addresses(address, refused):
    pytest.importorskip("ray")
    assert refused(executor="ray", address=address).startswith(f"{address!r} is no address of a Ray cluster: write ")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_nobody_is_at_the_address(form, refused):
    pytest.importorskip("ray")
    with socket.socket() as taken:  # and not listened to: no other process can get the port meanwhile
        taken.bind(("127.0.0.1", 0))
        address = form.format(taken.getsockname()[1])
        text = refused(executor="ray", address=address)
    assert text.startswith(f"no Ray cluster answers at {address} (Connection refused): check host and port")
