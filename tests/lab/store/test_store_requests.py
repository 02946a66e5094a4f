import os
import socket
import subprocess

import pytest
from store_examples import example_run, example_spec

from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Counts, Store, requests

SPECS = sorted((example_spec(seed) for seed in range(4)), key=lambda spec: spec.seed)


def test_a_request_is_pending_until_it_is_recorded(store):
    store.request(SPECS)
    store.request(SPECS[:2])
    assert store.pending() == SPECS
    store.add(example_run(SPECS[1]))
    assert store.pending() == [SPECS[0], SPECS[2], SPECS[3]]
    store.request(SPECS)
    assert SPECS[1] not in store.pending()
    store.request(SPECS[:2], again=True)
    assert store.pending() == SPECS
    store.add(example_run(SPECS[1], salt="again"), again=True)
    assert store.pending() == [SPECS[0], SPECS[2], SPECS[3]]


def test_a_failure_has_a_reason_until_it_is_retried(store):
    store.request(SPECS)
    store.fail(SPECS[:2], "out of memory")
    assert [(failure.spec, failure.reason) for failure in store.failures()] == [
        (SPECS[0], "out of memory"),
        (SPECS[1], "out of memory"),
    ]
    assert store.pending() == SPECS[2:]
    store.request(SPECS[:1])  # a retry
    assert store.pending() == [SPECS[0], *SPECS[2:]]
    store.add(example_run(SPECS[1]))  # succeeds without being asked for again
    assert store.failures() == []
    store.fail(SPECS[:1], "again")
    store.fail(SPECS[:1], "and again")
    assert [failure.reason for failure in store.failures()] == ["and again"]


def test_what_was_never_requested_can_fail_and_what_is_recorded_cannot(store):
    store.add(example_run(SPECS[1]))
    store.fail(SPECS[:2], "lost the GPU")
    assert [failure.spec for failure in store.failures()] == [SPECS[0]]


def test_claims_of_a_live_process_hold_and_those_of_a_dead_one_do_not(store, monkeypatch):
    other = subprocess.Popen(["sleep", "3600"])
    try:
        owner = f"{socket.gethostname()}/{other.pid}/{requests._start_of(other.pid)}"
        with monkeypatch.context() as patch:
            patch.setattr(requests, "this_process", lambda: owner)
            assert store.claim(SPECS[:2], lease=-1) == SPECS[:2]
        assert store.claim(SPECS) == SPECS[2:]
        assert store.claim(SPECS) == SPECS[2:]  # its own are still its own
        assert store.summary().total.running == 4
        assert store.pending() == SPECS
    finally:
        other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not collected yet
    assert store.claim(SPECS) == SPECS
    other.wait()
    assert store.claim(SPECS) == SPECS


def test_a_process_id_that_was_given_to_another_process_holds_nothing(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(requests, "this_process", lambda: f"{socket.gethostname()}/1/before")
        store.claim(SPECS)
    assert store.claim(SPECS) == SPECS


def test_claims_of_another_machine_hold_for_their_time(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(requests, "this_process", lambda: "a/far/machine/12/345")
        store.claim(SPECS[:1], lease=1000)
        store.claim(SPECS[1:], lease=-1)
    assert store.claim(SPECS) == SPECS[1:]


def test_a_renewed_claim_holds_and_one_that_was_taken_over_is_not_taken_back(store, monkeypatch):
    now, owner = [0.0], ["a/far/machine/12/345"]
    monkeypatch.setattr(requests, "clock", lambda: now[0])
    monkeypatch.setattr(requests, "this_process", lambda: owner[0])
    store.claim(SPECS[:2], lease=10)
    now[0] = 9
    store.renew(lease=10)
    now[0], owner[0] = 18, "another/1/1"
    assert store.claim(SPECS[:2], lease=10) == []
    now[0] = 20
    assert store.claim(SPECS[:1], lease=10) == SPECS[:1]  # it was not renewed in time
    owner[0] = "a/far/machine/12/345"
    store.renew(lease=10)
    assert store.claim(SPECS) == SPECS[1:]


def test_a_claim_ends_with_the_run_the_failure_and_the_store(store):
    with Store(store.path) as second:
        second.claim(SPECS)
        second.add(example_run(SPECS[0]))
        second.fail(SPECS[1:2], "no path")
        assert store.summary().total.running == 2
    assert store.summary().total.running == 0
    assert store.pending() == SPECS[2:]
    assert store.claim(SPECS) == SPECS[1:]
    assert store.claim(SPECS[:1], again=True) == SPECS[:1]


def test_the_summary_counts(store):
    assert store.summary().groups == ()
    assert store.summary().last_write is None
    specs = [*pairs(RunSpec(epochs=2), range(3)), RunSpec(arch="cnn", dataset="cifar100", epochs=2)]
    store.request(specs)
    store.add(example_run(specs[0], device="cpu"))
    store.add(example_run(specs[2], device="cpu"))
    store.add(example_run(specs[1], epochs=1, outcome="diverged", device="NVIDIA H200"))
    store.add(example_run(specs[0], salt="again", device="cpu"), again=True)
    store.fail(specs[-1:], "needs 3 channels")
    summary = store.summary()
    cnn, asymmetric, plain = summary.groups
    assert cnn == Counts("cifar100", "cnn", "asymmetric", failed=1)
    assert (asymmetric.arch, asymmetric.variant, asymmetric.diverged, asymmetric.pending) == ("mlp", "asymmetric", 1, 2)
    assert (plain.finished, plain.pending, plain.epochs) == (2, 1, 4)
    assert plain.seconds == pytest.approx(sum(run.seconds for run in store.runs(variant="plain")))
    assert summary.devices == (("NVIDIA H200", 1), ("cpu", 2))
    assert [(failure.spec.arch, failure.reason) for failure in summary.failures] == [("cnn", "needs 3 channels")]
    assert summary.last_write is not None
    assert (summary.total.finished, summary.total.diverged, summary.total.pending) == (2, 1, 3)


def test_a_known_spec_can_be_measured_and_is_not_asked_for(store):
    store.know(SPECS)
    store.know(SPECS[:1])
    assert store.pending() == []
    assert store.finished() == set()
    assert store.add_measurement(SPECS[0].id, "norm", {0: 1.5})
    assert [(one.spec_id, one.value) for one in store.measurements("norm")] == [(SPECS[0].id, 1.5)]
    # Knowing changes nothing about what was asked for or run before.
    store.request(SPECS[:1])
    store.add(example_run(SPECS[1]))
    store.know(SPECS)
    assert store.pending() == [SPECS[0]]
    assert store.finished() == {SPECS[1].id}
