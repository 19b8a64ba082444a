"""The demo's last part and vLLM's installation, run where something is lacking."""

import os

import numpy as np
import pytest
from checkout import CHECKOUT, need, path_with, run_python
from stand_in import write_stand_in

from adaspec.trace.schema import LoggedStep

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


ANSWERS = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    asked = 0

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        count = Handler.asked
        self.answer(
            'adaspec:decisions_total{source="ngram",reason="alone"} %d\\n' % (10 * count)
            + 'adaspec:drafted_tokens_total{source="ngram"} %d\\n' % (40 * count)
            + 'adaspec:accepted_tokens_total{source="ngram"} %d\\n' % (15 * count)
        )

    def do_POST(self):
        Handler.asked += 1
        text = "\\n".join(f"[line] {n}" for n in range(20))
        document = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 25}}
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(json.dumps(document))

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def is_over(log):
    """Whether the server with this log has ended."""
    try:
        os.kill(int(log.read_text().split()[2]), 0)
    except ProcessLookupError:
        return True
    return False


def test_answers_speeds_and_drafts_are_shown_and_the_servers_are_ended(tmp_path):
    begins = "import os, sys\nprint('I am', os.getpid(), *sys.argv, flush=True)\n"
    write_stand_in(tmp_path / "stand-in", begins + ANSWERS)
    (tmp_path / "models" / "target").mkdir(parents=True)
    ready = "serve_demo.check_engine = serve_demo.check_room = lambda _: None"
    judge = f"cat {tmp_path / 'server.log'} >{tmp_path / 'seen'}; echo judged"
    said = serve(tmp_path, ready, "--meanwhile", judge)
    assert (tmp_path / "seen").is_file()  # so there was a server's log by then
    assert said.index("Starting vLLM") < said.index("judged") < said.index("25 tokens")
    assert said.count(": 25 tokens") == 3
    assert "[line] 7\n... (12 lines more)" in said
    assert "The answers of 3 methods are the same." in said
    rows = {line[:24].strip(): line.split()[-4:] for line in said.splitlines()}
    assert rows["tokens per step"] == ["2.50"] * 4
    for method in ("no speculation", "vLLM's n-gram", "adaspec"):
        assert all(float(rate) > 0 for rate in rows[method])
    config = f'"policy": "{tmp_path / "policy"}", "cost": "{tmp_path / "cost.json"}"'
    assert config in (tmp_path / "server.log").read_text()
    assert "--speculative-config '{" in said and config in said  # to serve it by hand
    assert '"method": "ngram"' in (tmp_path / "ngram.log").read_text()
    for log in ("server.log", "ngram.log"):
        assert is_over(tmp_path / log)


def test_steps_are_shown_as_text_that_adds_up_to_the_answer(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "eval")
    from serve_demo import step_rows

    key = {"workload": "shown", "id": "talk"}
    first = {"position": 1, "draft_len": 4, "accepted": 3, "ngram_len": 3, "neural_len": 1}
    first |= {"drafted_tokens": np.array([1, 2, 3, 9]), "output_tokens": np.arange(7)}
    second = {"position": 5, "draft_len": 0, "accepted": 0, "ngram_len": 0, "neural_len": 0}
    second |= {"drafted_tokens": np.array([], int)}
    steps = [LoggedStep(**key, step=at, **each) for at, each in enumerate((first, second))]
    assert step_rows(steps, lambda tokens: "".join(map(str, tokens)).replace("2", "\n")) == [
        ["the prompt", "", "", "0"],
        ["head 1 + copy 3", "1↵3", "9", "4"],
        ["-", "", "", "56"],
    ]
