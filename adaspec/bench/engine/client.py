"""What is said to a server over HTTP: streamed completions, its counters, its best tokens."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from adaspec.bench.engine.figures import Figures
from adaspec.bench.lookup import BenchError
from adaspec.documents import parse_json

TIMEOUT_S = 600.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks servers of this machine: urlopen would ask a proxy of the environment for them."""
_LOG = "its log says more"
COUNTERS = {
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


def stream(
    address: str, prompt: Sequence[int], max_tokens: int
) -> Iterator[tuple[float, list[int]]]:
    """(when, which tokens) of a greedy completion, as they arrive."""
    body = {
        "model": "bench",
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
    }
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
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
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer = parse_json(_read(request), "the server's answer", BenchError, _LOG)
    return answer["choices"][0]["message"]["content"] or "", answer["usage"]["completion_tokens"]


def figures(address: str) -> Figures:
    """adaspec's own figures since the server's start."""
    return Figures.read(_metrics(address))


def counters(address: str) -> dict[str, float]:
    """Drafted and accepted tokens since the server's start, all engines together."""
    text = _metrics(address)
    found = dict.fromkeys(COUNTERS, 0.0)
    for line in text.splitlines():
        for name, metric in COUNTERS.items():
            if line.startswith((f"{metric}_total{{", f"{metric}{{", f"{metric}_total ")):
                found[name] += float(line.rpartition(" ")[2])
    return found


def best_tokens(address: str, prompt: Sequence[int], count: int = 5) -> dict[int, float]:
    """Log-probabilities of the likeliest next tokens."""
    body: dict[str, Any] = {
        "model": "bench",
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": count,
        "return_tokens_as_token_ids": True,
    }
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer = parse_json(_read(request), "the server's answer", BenchError, _LOG)
    best = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {int(name.removeprefix("token_id:")): float(value) for name, value in best.items()}


def _metrics(address: str) -> str:
    return _read(urllib.request.Request(f"{address}/metrics")).decode()


def _read(request: urllib.request.Request) -> bytes:
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
    said = " ".join(body.decode(errors="replace").split())[:300]
    return BenchError(f"the server answered {status}: {said}")


def _gone(error: Exception) -> BenchError:
    return BenchError(f"the server broke off ({type(error).__name__}: {error}): {_LOG}")
