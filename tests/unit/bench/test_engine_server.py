"""A server as a subprocess, stood in for by one that only says that it is healthy."""

import urllib.request

import pytest

from adaspec.bench.engine import server as module
from adaspec.bench.engine.entrants import Entrant
from adaspec.bench.engine.server import Server

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
    made = Server("a model", Entrant("stand-in", "", None), {}, tmp_path / "server.log")
    yield made
    made.stop()


def test_a_server_is_up_whatever_proxy_the_environment_names(healthy, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # urlopen looks at the environment once, and an earlier test may have had it do so.
    monkeypatch.setattr(urllib.request, "_opener", None)
    monkeypatch.setattr(module, "PATIENCE_S", 20.0)
    healthy.wait()
