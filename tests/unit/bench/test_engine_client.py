"""A server's client, tried on a small server with fixed answers."""

import json
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec

import pytest

from adaspec.bench.engine import client
from adaspec.bench.engine.client import Call, send_all
from adaspec.errors import BenchError

reads_metrics = pytest.mark.skipif(
    find_spec("prometheus_client") is None, reason="vLLM brings prometheus_client"
)

METRICS = """# TYPE vllm:spec_decode_num_draft_tokens counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="bench"} 30.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="bench"} 12.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="bench"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="bench"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
adaspec:decisions_total{source="ngram",reason="alone"} 5.0
"""


EVENTS = [
    {"choices": [{"token_ids": [4, 5], "text": "ab"}]},
    {"choices": [{"token_ids": None, "text": ""}]},
    {"choices": [{"token_ids": [6], "text": "c"}]},
]


@pytest.fixture
def server():
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words):
            pass

        def answer(self, text, status=200):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self):
            self.answer(METRICS)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            if "messages" in body:
                choice = {"message": {"content": "42"}}
                if body["messages"][0]["content"] == "too much":
                    self.answer("the model takes\nno more", 400)
                    return
                self.answer(json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}))
            elif body["prompt"] == [0]:
                self.answer("too long", 400)
            elif body["prompt"] == [1]:
                self.answer('data: {"error": {"message": "engine died"}}\n\n')
            elif body.get("stream"):
                lines = [f"data: {json.dumps(event)}\n\n" for event in EVENTS]
                self.answer("".join([*lines, "data: [DONE]\n\n"]))
            else:
                best = {"token_id:7": -0.5, "token_id:9": -1.0}
                self.answer(json.dumps({"choices": [{"logprobs": {"top_logprobs": [best]}}]}))

    made = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}", asked
    made.shutdown()
    made.server_close()


def test_a_stream_is_pieces_of_token_ids_with_their_times(server):
    address, asked = server
    pieces = list(client.stream(address, [2, 3], 16))
    assert [tokens for _, tokens in pieces] == [[4, 5], [6]]
    assert pieces[0][0] <= pieces[1][0]
    assert asked[0]["temperature"] == 0
    assert asked[0]["return_token_ids"] is True
    assert asked[0]["max_tokens"] == 16


@reads_metrics
def test_counters_are_summed_over_engines_and_nothing_else_is_counted(server):
    assert client.counters(server[0]) == {"drafted": 42.0, "accepted": 9.0}


@reads_metrics
def test_adaspecs_own_figures_are_read_apart(server):
    assert client.metrics(server[0]).total("decisions_total", source="ngram") == 5


def test_a_question_is_answered_greedily_by_the_chat_template(server):
    address, asked = server
    assert client.chat(address, "6 by 7?", 16) == ("42", 2)
    assert asked[0]["messages"] == [{"role": "user", "content": "6 by 7?"}]
    assert asked[0]["temperature"] == 0
    assert asked[0]["max_tokens"] == 16


def test_the_targets_best_tokens_come_by_their_ids(server):
    assert client.best_tokens(server[0], [2]) == {7: -0.5, 9: -1.0}


@pytest.mark.parametrize(
    ("prompt", "said"), [([0], "answered 400: too long"), ([1], "engine died")]
)
def test_what_a_server_refuses_is_said_in_its_words(server, prompt, said):
    with pytest.raises(BenchError, match=said):
        list(client.stream(server[0], prompt, 4))


def test_a_question_that_is_refused_is_said_in_the_servers_words(server):
    for ask in (
        lambda: client.chat(server[0], "too much", 4),
        lambda: client.best_tokens(server[0], [0]),
    ):
        with pytest.raises(BenchError, match=r"the server answered 400: (the|too) \w+"):
            ask()


@reads_metrics
def test_no_proxy_of_the_environment_is_asked(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # urlopen looks at the environment once, and an earlier test may have had it do so.
    monkeypatch.setattr(urllib.request, "_opener", None)
    assert client.counters(server[0])["drafted"] == 42
    assert client.chat(server[0], "6 by 7?", 16) == ("42", 2)
    assert len(list(client.stream(server[0], [2, 3], 16))) == 2


@reads_metrics
def test_a_server_that_is_gone_is_a_benchmarks_error():
    for ask in (
        lambda: list(client.stream("http://127.0.0.1:9", [2], 4)),
        lambda: client.counters("http://127.0.0.1:9"),
        lambda: client.chat("http://127.0.0.1:9", "2", 4),
    ):
        with pytest.raises(BenchError, match="the server broke off"):
            ask()


def test_calls_run_so_many_at_once_and_answers_keep_their_order():
    running, most, lock = [0], [0], threading.Lock()
    all_there = threading.Barrier(3, timeout=60)

    def stream(prompt, max_tokens):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        all_there.wait()
        yield time.perf_counter(), [7, 8]
        with lock:
            running[0] -= 1

    calls = [Call("a", str(at), (1, 2), 8) for at in range(9)]
    answers = send_all(calls, 3, stream)
    assert [each.id for each in answers] == [each.id for each in calls]
    assert most[0] == 3
    assert all(each.tokens == (7, 8) and each.counts == (2,) for each in answers)


def test_a_server_that_fails_ends_the_round_with_its_error():
    def stream(prompt, max_tokens):
        raise BenchError("the server answered 500")
        yield

    with pytest.raises(BenchError, match="answered 500"):
        send_all([Call("a", str(at), (1, 2), 8) for at in range(4)], 2, stream)
