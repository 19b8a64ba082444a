"""A server's client: completions over HTTP, so many at once, and what the server counted."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adaspec.bench.engine.metrics import Metrics
from adaspec.documents import parse_json
from adaspec.errors import BenchError

TIMEOUT_S = 600.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""For servers of this machine: urlopen would go through a proxy that the environment names."""
_LOG = "its log says more"
SERVED_NAME = "bench"
"""What every server calls its model."""

Stream = Callable[[Sequence[int], int], Iterator[tuple[float, list[int]]]]
"""(prompt, most tokens) -> (when, which tokens) as they arrive."""


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt to send, and the most tokens to ask for."""

    workload: str
    id: str
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call; seconds are since the round began."""

    workload: str
    id: str
    sent_s: float
    arrived_s: tuple[float, ...]
    """When each piece arrived."""
    counts: tuple[int, ...]
    """How many tokens each piece held."""
    tokens: tuple[int, ...]


def send_all(calls: Sequence[Call], concurrency: int, stream: Stream) -> list[Answer]:
    """Send all calls, `concurrency` at a time, and read every answer; in the calls' order."""
    answers: list[Answer | None] = [None] * len(calls)
    failures: list[BaseException] = []
    waiting = iter(range(len(calls)))
    lock = threading.Lock()
    began_s = time.perf_counter()

    def work() -> None:
        try:
            while not failures:
                with lock:
                    at = next(waiting, None)
                if at is None:
                    return
                answers[at] = _answer(calls[at], stream, began_s)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(calls)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answer for answer in answers if answer is not None]


def _answer(call: Call, stream: Stream, began_s: float) -> Answer:
    sent_s = time.perf_counter() - began_s
    pieces = list(stream(call.prompt, call.max_tokens))
    return Answer(
        call.workload,
        call.id,
        sent_s,
        tuple(at_s - began_s for at_s, _ in pieces),
        tuple(len(tokens) for _, tokens in pieces),
        tuple(token for _, tokens in pieces for token in tokens),
    )


def stream(
    address: str, prompt: Sequence[int], max_tokens: int
) -> Iterator[tuple[float, list[int]]]:
    """(when, which tokens) of a greedy completion, as they arrive."""
    body = _body(prompt=list(prompt), max_tokens=max_tokens, stream=True, return_token_ids=True)
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v1/completions", body, _JSON)
        response = connection.getresponse()
        if response.status != 200:
            raise _refused(response.status, response.read(2000))
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            at_s = time.perf_counter()
            event = parse_json(line[len(b"data: ") :], "the server's answer", BenchError, _LOG)
            if "error" in event:
                raise BenchError(f"the server broke off: {str(event['error'])[:300]}")
            tokens = [token for each in event["choices"] for token in each["token_ids"] or ()]
            if tokens:
                yield at_s, tokens
    except (OSError, http.client.HTTPException) as error:
        raise _gone(error) from error
    finally:
        connection.close()


def chat(address: str, question: str, max_tokens: int) -> tuple[str, int]:
    """The greedy answer to one question, through the model's chat template, and its length."""
    body = _body(messages=[{"role": "user", "content": question}], max_tokens=max_tokens)
    answer = parse_json(
        _read(f"{address}/v1/chat/completions", body), "the server's answer", BenchError, _LOG
    )
    return answer["choices"][0]["message"]["content"] or "", answer["usage"]["completion_tokens"]


def best_tokens(address: str, prompt: Sequence[int], count: int = 5) -> dict[int, float]:
    """Log-probabilities of the likeliest next tokens."""
    body = _body(prompt=list(prompt), max_tokens=1, logprobs=count, return_tokens_as_token_ids=True)
    answer = parse_json(
        _read(f"{address}/v1/completions", body), "the server's answer", BenchError, _LOG
    )
    best = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {int(name.removeprefix("token_id:")): float(value) for name, value in best.items()}


def metrics(address: str) -> Metrics:
    """adaspec's own metrics since the server's start."""
    return Metrics.read(_read(f"{address}/metrics").decode())


def counters(address: str) -> dict[str, float]:
    """Drafted and accepted tokens since the server's start, all engines together."""
    found = Metrics.read(_read(f"{address}/metrics").decode(), "vllm:spec_decode_num_")
    names = {"drafted": "draft_tokens", "accepted": "accepted_tokens"}
    return {key: found.total(f"{name}_total") or found.total(name) for key, name in names.items()}


_JSON = {"Content-Type": "application/json"}


def _body(**parameters: Any) -> bytes:
    return json.dumps({"model": SERVED_NAME, "temperature": 0, **parameters}).encode()


def _read(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body, _JSON if body else {})
    try:
        try:
            with DIRECT.open(request, timeout=TIMEOUT_S) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise _refused(refusal.code, refusal.read(2000)) from refusal
    except (OSError, http.client.HTTPException) as error:
        raise _gone(error) from error


def _refused(status: int, body: bytes) -> BenchError:
    text = " ".join(body.decode(errors="replace").split())[:300]
    return BenchError(f"the server answered {status}: {text}")


def _gone(error: Exception) -> BenchError:
    return BenchError(f"the server broke off ({type(error).__name__}: {error}): {_LOG}")
