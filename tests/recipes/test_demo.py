"""The demo's last part, run where something is lacking and beside a stand-in for vLLM."""

import os

import pytest
from checkout import CHECKOUT, need, path_with, run_python

need("eval")


def serve(folder, setting, *more):
    """Run the last part of the demo where `setting` was run before."""
    words = ["--policy", folder / "policy", "--cost", folder / "cost.json"]
    words += ["--target", folder / "models" / "target", "--log", folder / "server.log", *more]
    code = f"import sys, serve_demo\n{setting}\nsys.exit(serve_demo.main())"
    path = path_with(folder / "stand-in", CHECKOUT / "eval")
    return run_python("-c", code, *words, PYTHONPATH=path).stdout


WITHOUT_VLLM = "sys.modules['vllm'] = None"
FULL = "serve_demo.check_engine = lambda _: None; serve_demo.MEMORY_BYTES = 9e15"


@pytest.mark.parametrize(
    ("setting", "said", "words"),
    [
        (WITHOUT_VLLM, "", ("Not served. vLLM is not installed: ", "pip install vllm")),
        (WITHOUT_VLLM, "no wheel", ("Not served. no wheel. ", "'make demo' serves, too.")),
        (FULL, "", ("Not served. The server needs 9000000.0 GB of memory",)),
    ],
)
def test_what_stands_in_the_way_is_said_in_the_last_line_and_leaves_nothing(
    tmp_path, setting, said, words
):
    out = serve(tmp_path, setting, "--said", said, "--meanwhile", "echo judged")
    first, *_, last = out.splitlines()
    assert first == "judged"
    assert all(word in last for word in words), last
    assert not (tmp_path / "models").exists()


STAND_IN = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

print('I am', os.getpid(), *sys.argv, flush=True)

class Handler(BaseHTTPRequestHandler):
    asked = 0

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        counts = {("drafted", "ngram"): 40, ("accepted", "ngram"): 10, ("accepted", "neural"): 5}
        self.answer("".join(
            f'adaspec:{what}_tokens_total{{source="{source}"}} {count * Handler.asked}.0\\n'
            for (what, source), count in counts.items()
        ))

    def do_POST(self):
        Handler.asked += 1
        text = "\\n".join(f"[line] {n}" for n in range(20))
        document = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 25}}
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(json.dumps(document))

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_answers_and_speeds_are_shown_and_the_server_is_ended(tmp_path):
    package, log = tmp_path / "stand-in" / "vllm", tmp_path / "server.log"
    (package / "entrypoints" / "cli").mkdir(parents=True)
    (package / "entrypoints" / "cli" / "main.py").write_text(STAND_IN)
    (package / "__init__.py").touch()
    (tmp_path / "models" / "target").mkdir(parents=True)
    ready = "serve_demo.check_engine = serve_demo.check_room = lambda _: None"
    said = serve(tmp_path, ready, "--meanwhile", f"test -e {log} && echo judged")
    assert said.index("judged") < said.index("mathematics: [line] 0\n  [line] 1\n")
    assert said.count("[line] 1\n  ...") == 3
    assert "The answers with and without are the same." in said
    assert said.count("15 of 40") == 3
    config = f'"policy": "{tmp_path / "policy"}", "cost": "{tmp_path / "cost.json"}"'
    assert config in log.read_text()
    assert "--speculative-config '{" in said and config in said  # to serve it by hand
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text().split()[2]), 0)
