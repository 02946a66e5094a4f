"""The live page, from the real server."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from asymtrain.lab import executors, live_page
from asymtrain.lab.cli.watch import WatchOptions
from asymtrain.lab.live_page import served
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.store import Store
from invented_runs import invent, invented_epoch
from small_backbones import tiny_spec

SPECS = pairs(tiny_spec(epochs=3), [42, 43])


def get(server, path=None, method="GET", **headers):
    """Status, headers and text of an answer; without a path, of the link that is printed."""
    path = path or f"/{server.url.partition(f'{server.port}/')[2]}"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def printed_server(text):
    url = re.search(r"http://127\.0\.0\.1:(\d+)/\S*", text)
    return SimpleNamespace(url=url[0], port=int(url[1]))


@pytest.fixture
def store(tmp_path):
    """A store with four runs asked for, and none finished."""
    path = tmp_path / "runs.sqlite"
    with Store(path) as opened:
        opened.request(SPECS)
    return path


def words(page):
    return " ".join(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).split())


def test_a_store_with_no_finished_run_shows_what_is_pending(store):
    with served(store) as server:
        status, _, page = get(server)
    assert status == 200
    assert "0 of 4 runs are trained." in words(page)
    assert "0 of 12 epochs" in words(page)
    assert words(page).count("not trained yet") == 4
    assert "nothing to compare" in words(page)


def test_the_page_changes_with_the_store_and_only_then(store, monkeypatch):
    monkeypatch.setattr(live_page, "SHARE", 1e9)  # a page for every change, however long the first took to make
    with served(store) as server:
        _, first, page = get(server)
        status, headers, body = get(server, **{"If-None-Match": first["ETag"]})
        assert (status, headers["ETag"], body) == (304, first["ETag"], "")
        with Store(store) as opened:
            for spec in SPECS:
                opened.add(invent(spec))
            status, second, after = get(server, **{"If-None-Match": first["ETag"]})  # while it is being written
        assert status == 200
        assert second["ETag"] != first["ETag"]
        assert "4 of 4 runs are trained." in words(after)
        assert 'id="comparisons"' not in page
        assert 'id="comparisons"' in after, "the comparisons of the report"
        assert get(server)[2] == after


def test_pages_are_not_made_without_end_and_the_slow_first_ones_delay_none(store, monkeypatch):
    monkeypatch.setattr(live_page, "SHARE", 1e-9)  # after a page that counts, the next one is due in years
    pages = []
    with served(store) as server, Store(store) as opened:
        for spec in SPECS:
            pages.append(words(get(server)[2]))
            opened.add(invent(spec))
        pages.append(words(get(server)[2]))
    assert [re.search(r"(\d) of 4 runs", page)[1] for page in pages] == ["0", "1", "2", "2", "2"]


def test_a_page_shows_one_moment(store, monkeypatch):
    """Runs that are stored while a page is made are counted once: on the next one."""
    pending_states = live_page.pending_states

    def store_meanwhile(opened):
        read = pending_states(opened)
        with Store(store) as another:
            for spec in SPECS:
                another.add(invent(spec))
        return read

    page = live_page.LivePage(store)
    monkeypatch.setattr(live_page, "pending_states", store_meanwhile)
    assert "0 of 4 runs are trained." in words(live_page.render_store(store)[1])
    assert "4 of 4 runs are trained." in words(page.current()[0].decode())


def test_what_is_being_trained_is_there_before_it_is_stored(tmp_path, one_core):
    path, pages = tmp_path / "runs.sqlite", []

    def look(progress):
        if progress.recorded:
            pages.append(live_page.LivePage(path).current()[0].decode())

    list(executors.execute(SPECS, store=path, device="cpu", progress=look))
    assert len(pages) == 3
    assert "0 of 4 runs are trained, 4 are being trained now; about" in words(pages[1])
    assert "8 of 12 epochs" in words(pages[1])
    assert pages[1].count('<div class="plot">') == 1
    assert words(pages[1]).count("is being trained now") == 4
    last = live_page.LivePage(path).current()[0].decode()
    assert "4 of 4 runs are trained." in words(last)
    assert 'id="unfinished"' not in last


def test_stacks_that_compile_or_wait_for_a_turn_do_not_shorten_the_time_left():
    trained, begun = {SPECS[0]: [invented_epoch(1, 0.5, None, None)]}, {SPECS[1]: []}
    assert [live_page.count_training(stacks) for stacks in ([], [begun], [begun, begun])] == [0, 1, 1]
    assert [live_page.count_training([trained, begun]), live_page.count_training([trained, trained])] == [1, 2]


def test_runs_of_several_settings_are_not_averaged():
    searched = {RunSpec(alpha=alpha, epochs=3): [invented_epoch(1, alpha, None, 0.1)] for alpha in (0.1, 0.2)}
    (figure,) = live_page.unfinished_curves(searched)
    (panel,) = figure.panels
    assert [line.y for line in panel.lines] == [pytest.approx((0.09,)), pytest.approx((0.19,))]


def test_a_failure_is_named_with_its_reason(store):
    with Store(store) as opened:
        opened.fail(SPECS[:1], "the disk\nis <full>")
    page = live_page.LivePage(store).current()[0].decode()
    assert "failed: shapes mlp plain seed 42" in page
    assert "the disk is &lt;full&gt;" in page


@pytest.mark.parametrize("path", ["/", "/?", "/?token=", "/?token={half}", "/?x=1&{query}", "/?{query}&"])
def test_the_page_needs_the_token_of_its_link(store, path):
    with served(store) as server:
        path = path.format(half=server.query[6:20], query=server.query)
        assert get(server)[0] == 200
        status, headers, body = get(server, path)
    assert (status, headers["ETag"]) == (403, None)
    assert "token" in body
    assert server.query not in body


def test_a_page_without_a_token(store):
    with served(store, token=False) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert get(server, "/")[0] == get(server, "/?token=old")[0] == 200


def answer_to(server, request):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request.format(port=server.port, query=server.query).encode())
        return connection.makefile("rb").read().decode()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 200),
        ("GET /?{query} HTTP/1.1\r\nHost: LocalHost:{port}\r\n\r\n", 200),
        ("GET /?{query} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n", 403),
        ("GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 403),
        ("GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", 403),
        ("GET /?{query} HTTP/1.1\r\nHost:\r\n\r\n", 403),
        ("GET /?{query} HTTP/1.1\r\n\r\n", 403),
        ("GET /?token=\xe9 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 403),
        ("GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n", 403),
        ("GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: 127.0.0.1:{port}\r\n\r\n", 403),
        ("GET http://evil.example/?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 400),
        ("GET http://[ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 400),
    ],
)
def test_other_hosts_and_absolute_uris_are_refused(store, capfd, request_text, status):
    with served(store) as server:
        answer = answer_to(server, request_text)
    assert answer.split()[1] == str(status)
    assert status == 200 or server.query not in answer
    assert capfd.readouterr().err == "", "a request prints nothing while a study trains"


def test_there_is_one_page_and_it_can_only_be_read(store):
    before = store.read_bytes()
    with served(store) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert get(server, "/runs.sqlite")[0] == 404
        assert get(server, "/../runs.sqlite")[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            assert get(server, method=method)[0] == 501
        status, headers, body = get(server, method="HEAD")
        assert (status, body) == (200, "")
        assert int(headers["Content-Length"]) > 1000
    assert store.read_bytes() == before


def test_a_store_that_is_damaged_meanwhile(store):
    with served(store) as server:
        store.write_text("something else")
        status, _, body = get(server)
        assert status == 503
        assert "is not an asymtrain store" in body


def test_bad_input_is_refused(refused, store, tmp_path):
    assert "there is no store at absent.sqlite" in refused("watch", "absent.sqlite")
    for command in ("run", "search"):
        assert "unknown executor 'loca'" in refused(command, "--watch", "--executor", "loca")
    assert "65535" in refused("watch", store, "--port", "65536")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused("watch", store, "--port", port)
    assert f"port {port} cannot be used" in line


def test_ctrl_c_ends_it_quietly(store):
    command = [sys.executable, "-m", "asymtrain", "watch", str(store), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        line = process.stderr.readline()
        assert re.fullmatch(rf"Watching {store}: http://127\.0\.0\.1:\d+/\?token=\w+ \(Ctrl-C ends it\)\n", line)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "", "Stopping ...\n")


@pytest.mark.parametrize(
    "command",
    ["run --seeds 1", "search --learning-rates 0.1,0.2 --weight-decays 0.1 --alphas 1"],
    ids=["run", "search"],
)
def test_the_page_is_offered_while_it_trains(command, cli, photos, monkeypatch):
    pages = []
    execute = executors.execute

    def watched(specs, *, progress, **options):
        def look(report):
            progress(report)
            if report.recorded:
                pages.append(get(servers[0])[2])

        return execute(specs, progress=look, **options)

    servers, serve = [], live_page.Server.__init__

    def remember(self, *arguments, **options):
        serve(self, *arguments, **options)
        servers.append(self)

    monkeypatch.setattr(executors, "execute", watched)
    monkeypatch.setattr(live_page.Server, "__init__", remember)
    monkeypatch.setattr(live_page, "LAST_WORD", 0.01)
    result = cli(*command.split(), "--data", photos, "--arch", "mlp", "--epochs", "1", "--watch")
    assert result.code == 0, result.err
    assert f"Watch it train: {servers[0].url}\n" in result.err
    assert "0 of 2 runs are trained, 2 are being trained now" in words(pages[0])
    with pytest.raises(ConnectionRefusedError):
        get(servers[0])


def test_an_open_page_sees_the_end(store, capsys):
    seen = []

    def ask():
        seen.append(get(server)[2])

    with WatchOptions(watch=True).opened(store):
        server = printed_server(capsys.readouterr().err)
        ask()
        with Store(store) as opened:
            opened.add(invent(SPECS[0]))
        late = threading.Timer(0.2, ask)  # the page's next question, after the training has ended
        late.start()
    late.join()
    assert "0 of 4 runs are trained" in words(seen[0])
    assert "1 of 4 runs are trained" in words(seen[1])


def test_a_page_that_is_being_made_as_the_training_ends_sees_the_end(store, capsys, monkeypatch):
    monkeypatch.setattr(live_page, "PAUSE", 0.1)
    render, begun, seen = live_page.render_store, threading.Event(), []

    def render_slowly(path):
        page = render(path)
        begun.set()
        time.sleep(0.5)
        return page

    def ask_twice():
        for _ in range(2):
            seen.append(get(server)[2])

    monkeypatch.setattr(live_page, "render_store", render_slowly)
    with WatchOptions(watch=True).opened(store):
        server = printed_server(capsys.readouterr().err)
        page = threading.Thread(target=ask_twice)
        page.start()
        assert begun.wait(60)
        with Store(store) as opened:
            opened.add(invent(SPECS[0]))
    page.join()
    assert ["0 of 4 runs" in words(seen[0]), "1 of 4 runs" in words(seen[1])] == [True, True]


def test_idle_connections_are_limited(store, monkeypatch):
    monkeypatch.setattr(live_page, "CONNECTIONS", 3)
    with served(store) as server:
        before = threading.active_count()
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(3)]
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as refused:
                assert refused.recv(1) == b"", "it is closed at once"
        assert threading.active_count() <= before + 3
        for connection in idle:
            connection.close()
        while threading.active_count() > before:
            time.sleep(0.01)
        assert get(server)[0] == 200
