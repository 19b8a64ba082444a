"""Whoever names what an earlier version had gets one line: that it went, and what to use."""

import json

import policy_fakes as fakes
import pytest
from refusals import refusal

from adaspec.cli.main import run
from adaspec.errors import GONE, AdaspecError
from adaspec.policy.manifest import PolicyManifest
from adaspec.replay.contender import parse_contender
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.manifest import Manifest
from adaspec.vllm.client_arguments import is_off
from adaspec.vllm.options import read_options


def policy_key(word):
    record = json.loads(fakes.manifest().to_json())
    PolicyManifest.from_json(json.dumps({**record, word: {}}), "manifest.json")


def serving_key(word):
    read_options({"method": "adaspec", word: 1})


def oracle(word):
    parse_contender(f"oracle:{word}")


def kind_of_trace(word):
    record = json.loads(Manifest().to_json())
    Manifest.from_record({**record, "schema": 3, "kind": word}, "manifest.json")


def format_to_import(word):
    import_trace(word, ["answers.jsonl"], "traces")


def mode(word):
    read_options({"method": "adaspec", "mode": word})


def argument(word):
    is_off({word: 1})


SPECS = ("ema", "hybrid-agree", "hybrid-until", "fixed:neural-until", "fixed:ngram-vllm")
SPECS += ("fixed:memory", "hybrid-memory")
WENT = [
    *((serving_key, word) for word in ("log_decisions_per_s", "max_context_tokens")),
    *((serving_key, word) for word in ("max_drafted_tokens", "target", "sampling")),
    *((serving_key, word) for word in ("memory_bytes", "memory_dir")),
    (mode, "shadow"),
    *((argument, word) for word in ("adaspec_cap", "adaspec_source")),
    *((parse_contender, word) for word in (*SPECS, "static:memory")),
    *((oracle, word) for word in ("combine-memory", "plan-splice-memory")),
    *((policy_key, word) for word in ("static_tuned", "async_static_tuned")),
    (kind_of_trace, "logged"),
    (format_to_import, "vllm-responses"),
]
"""Where a word of before may be given, and the word."""


@pytest.mark.parametrize(("place", "word"), WENT)
def test_a_word_of_before_is_refused_with_what_to_use(place, word):
    assert f": it went in 0.2; {GONE[word]}" in refusal(AdaspecError, place, word)


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_of_before_is_refused_with_its_values_too(spec):
    said = refusal(AdaspecError, parse_contender, f"{spec}:3")
    assert said == f"policy spec '{spec}:3': it went in 0.2; {GONE[spec]}"


GIVEN = {
    "--protocol": "eval traces --protocol specdecode-bench",
    "--memory": "train traces --memory -o policy",
    "--cap": "eval traces --cap 20",
    "--crossfit-report": "train traces -o policy --crossfit-report crossfit",
    "bench": "bench decide",
    "--target": "record --target NAME",
    "--max-trace-bytes": "record --max-trace-bytes 9",
}
"""An option or command of before, and a command line that gives it."""


@pytest.mark.parametrize(("word", "line"), GIVEN.items(), ids=GIVEN)
def test_a_command_line_of_before_is_refused_with_what_to_use(word, line, capsys):
    assert run(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (said,) = err.splitlines()
    assert f": it went in 0.2; {GONE[word]}" in said and word in said
