"""A server as a subprocess, and several of which one runs at a time."""

import signal
import urllib.request

import pytest

from adaspec.bench.engine import server
from adaspec.bench.engine.methods import Candidate
from adaspec.bench.engine.server import Server, Servers, flags
from adaspec.errors import BenchError

HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def healthy(tmp_path, monkeypatch):
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(HEALTHY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Server("a model", Candidate("stand-in", "", None), {}, tmp_path / "server.log")
    yield made
    made.stop()


def test_a_server_is_up_whatever_proxy_the_environment_names(healthy, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # urlopen looks at the environment once, and an earlier test may have had it do so.
    monkeypatch.setattr(urllib.request, "_opener", None)
    monkeypatch.setattr(server, "MAX_START_S", 20.0)
    healthy.wait()


class FakeServer:
    """Stands in for a server."""

    def __init__(self, candidate, log):
        self.candidate, self.log = candidate, log
        log.append(("start", candidate.name))

    def wait(self):
        pass

    def held_bytes(self):
        return 1.0

    def __getattr__(self, name):
        return lambda: self.log.append((name, self.candidate.name))


def candidate(name):
    return Candidate("neural", name, {})


def test_engine_arguments_become_flags():
    found = flags({"max_model_len": 384, "enforce_eager": True, "dtype": "float32", "x_y": False})
    assert found == ["--max-model-len", "384", "--enforce-eager", "--dtype", "float32", "--no-x-y"]


def test_one_server_runs_and_the_others_are_suspended():
    log = []
    with Servers(lambda each: FakeServer(each, log)) as servers:
        servers.running(candidate("a"))
        servers.running(candidate("b"))
        log.clear()
        servers.running(candidate("a"))
        assert ("pause", "neural b") in log
        assert ("resume", "neural a") in log
        assert not [each for each in log if each[0] == "start"]
    assert {name for what, name in log if what == "stop"} == {"neural a", "neural b"}


def test_where_memory_is_short_the_one_that_waited_longest_goes(monkeypatch):
    log, free = [], [1e12]
    monkeypatch.setattr(server, "free_memory", lambda: free[0])
    with Servers(lambda each: FakeServer(each, log)) as servers:
        for name in ("a", "b"):
            servers.running(candidate(name))
        free[0] = 0.0
        servers.running(candidate("c"))
        assert [name for what, name in log if what == "stop"] == ["neural a", "neural b"]


def test_a_server_that_does_not_start_says_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    found = server.Server("M", candidate("a"), {}, tmp_path / "log")
    (tmp_path / "log").write_text("INFO hello\nValueError: no such head\n")
    with pytest.raises(BenchError, match="neural a: ValueError: no such head"):
        found.wait()
    found.stop()


def test_whoever_waits_for_a_server_hears_for_how_long(tmp_path, monkeypatch):
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    monkeypatch.setattr(server.time, "sleep", lambda seconds: None)
    heard = []
    found = server.Server("M", candidate("a"), {}, tmp_path / "log")
    found.stop()
    monkeypatch.setattr(found._process, "poll", lambda: None if len(heard) < 2 else 1)
    with pytest.raises(BenchError):
        found.wait(heard.append)
    assert len(heard) == 2
    assert 0 <= heard[0] <= heard[1]


def test_a_server_that_only_takes_too_long_is_not_said_to_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    monkeypatch.setattr(server, "MAX_START_S", 0.0)
    found = server.Server("M", candidate("a"), {}, tmp_path / "log")
    found.stop()
    monkeypatch.setattr(found._process, "poll", lambda: None)
    with pytest.raises(BenchError, match="was not up after 0 s, and still starting"):
        found.wait()


def test_what_ends_a_terminal_unwinds_and_what_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server.ended_by_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(SystemExit) as left:
                signal.raise_signal(signal.SIGTERM)
        assert left.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
