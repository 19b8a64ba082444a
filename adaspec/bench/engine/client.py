"""A server's client: completions over HTTP, so many at once, and what the server counted."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from adaspec.documents import parse_json
from adaspec.errors import BenchError
from adaspec.vllm.metrics import PREFIX

TIMEOUT_S = 600.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""For servers of this machine: urlopen would go through a proxy that the environment names."""
SERVED_NAME = "bench"
"""The name by which every server calls its model."""
_LOG = "its log says more"

Stream = Callable[[Sequence[int], int], Iterator[tuple[float, list[int]]]]
"""(prompt, most tokens) -> (when, which tokens) as they arrive."""
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt to send, and the most tokens to ask for."""

    workload: str
    id: str
    prompt: tuple[int, ...]
    max_tokens: int

    @property
    def key(self) -> tuple[str, str]:
        """The prompt's workload and id."""
        return self.workload, self.id


@dataclass(frozen=True, slots=True)
class Answer:
    """The output for a call; seconds are since the round began."""

    workload: str
    id: str
    sent_s: float
    arrived_s: tuple[float, ...]
    """When each piece arrived."""
    counts: tuple[int, ...]
    """How many tokens each piece held."""
    tokens: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The prompt's workload and id."""
        return self.workload, self.id


class Metrics(dict[tuple[str, Labels], float]):
    """Every sample of a server's `/metrics` whose name begins with a prefix, which is left out."""

    @classmethod
    def read(cls, text: str, prefix: str = PREFIX) -> Self:
        """From Prometheus' text format; other metrics are ignored."""
        # vLLM brings it.
        from prometheus_client.parser import text_string_to_metric_families

        return cls(
            ((sample.name.removeprefix(prefix), frozenset(sample.labels.items())), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(prefix)
        )

    def __sub__(self, earlier: Metrics) -> Metrics:
        """The counts since an earlier reading."""
        return Metrics((key, value - earlier.get(key, 0.0)) for key, value in self.items())

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where there is none."""
        return sum(
            value
            for (metric, pairs), value in self.items()
            if metric == name and labels.items() <= pairs
        )


def send_all(calls: Sequence[Call], concurrency: int, stream: Stream) -> list[Answer]:
    """Send all calls, `concurrency` at a time, and read every answer; in the calls' order."""
    began_s = time.perf_counter()

    def answer(call: Call) -> Answer:
        sent_s = time.perf_counter() - began_s
        pieces = list(stream(call.prompt, call.max_tokens))
        return Answer(
            call.workload,
            call.id,
            sent_s,
            tuple(arrived_s - began_s for arrived_s, _ in pieces),
            tuple(len(tokens) for _, tokens in pieces),
            tuple(token for _, tokens in pieces for token in tokens),
        )

    pool = ThreadPoolExecutor(concurrency)
    try:
        answers = [pool.submit(answer, call) for call in calls]
        for done in as_completed(answers):
            done.result()  # the first failure ends the round
        return [each.result() for each in answers]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def stream(
    address: str, prompt: Sequence[int], max_tokens: int
) -> Iterator[tuple[float, list[int]]]:
    """(when, which tokens) of a greedy completion, as they arrive."""
    body = _body(prompt=list(prompt), max_tokens=max_tokens, stream=True, return_token_ids=True)
    with _opened(f"{address}/v1/completions", body) as response:
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            arrived_s = time.perf_counter()
            event = _parsed(line[len(b"data: ") :])
            if "error" in event:
                raise BenchError(f"the server broke off: {str(event['error'])[:300]}")
            tokens = [token for each in event["choices"] for token in each["token_ids"] or ()]
            if tokens:
                yield arrived_s, tokens


def chat(address: str, question: str, max_tokens: int) -> tuple[str, int]:
    """The greedy answer to one question, through the model's chat template, and its length."""
    body = _body(messages=[{"role": "user", "content": question}], max_tokens=max_tokens)
    answer = _parsed(_read(f"{address}/v1/chat/completions", body))
    return answer["choices"][0]["message"]["content"] or "", answer["usage"]["completion_tokens"]


def best_tokens(address: str, prompt: Sequence[int], count: int = 5) -> dict[int, float]:
    """Log-probabilities of the likeliest next tokens."""
    body = _body(prompt=list(prompt), max_tokens=1, logprobs=count, return_tokens_as_token_ids=True)
    answer = _parsed(_read(f"{address}/v1/completions", body))
    best = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {int(name.removeprefix("token_id:")): float(value) for name, value in best.items()}


def metrics(address: str, prefix: str = PREFIX) -> Metrics:
    """adaspec's own metrics since the server's start, or those with another prefix."""
    return Metrics.read(_read(f"{address}/metrics").decode(), prefix)


def counters(address: str) -> dict[str, float]:
    """Drafted and accepted tokens since the server's start, all engines together."""
    counted = metrics(address, "vllm:spec_decode_num_")
    names = {"drafted": "draft_tokens", "accepted": "accepted_tokens"}
    return {
        key: counted.total(f"{name}_total") or counted.total(name) for key, name in names.items()
    }


def _body(**parameters: Any) -> bytes:
    return json.dumps({"model": SERVED_NAME, "temperature": 0, **parameters}).encode()


@contextmanager
def _opened(url: str, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
    """A server's response; a refusal or a broken connection is a `BenchError`."""
    headers = {"Content-Type": "application/json"} if body else {}
    request = urllib.request.Request(url, body, headers)
    try:
        with DIRECT.open(request, timeout=TIMEOUT_S) as response:
            yield response
    except urllib.error.HTTPError as refusal:
        with refusal:
            text = " ".join(refusal.read(2000).decode(errors="replace").split())[:300]
        raise BenchError(f"the server answered {refusal.code}: {text}") from refusal
    except (OSError, http.client.HTTPException) as error:
        fault = f"{type(error).__name__}: {error}"
        raise BenchError(f"the server broke off ({fault}): {_LOG}") from error


def _read(url: str, body: bytes | None = None) -> bytes:
    with _opened(url, body) as response:
        return response.read()


def _parsed(body: bytes) -> Any:
    return parse_json(body, "the server's answer", BenchError, _LOG)
