"""What the library raises: every error a caller may expect is an `AdaspecError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class AdaspecError(Exception):
    """Something the user can mend, in one line: what, where, what was found, what to do."""


class TraceError(AdaspecError):
    """A trace, or a file to import one from, is missing, unsound or of another schema."""


class CostError(AdaspecError):
    """A cost model's file or name cannot be used."""


class SpecError(AdaspecError):
    """A policy spec or folder cannot be used."""


class PolicyError(AdaspecError):
    """A policy's folder is damaged or does not fit."""


class PolicyFault(AdaspecError):
    """A policy broke the rules of the replay: asked for more than was drafted, known or allowed."""


class TrainingError(AdaspecError):
    """A policy cannot be trained as asked."""


class ServingError(AdaspecError, ValueError):
    """vLLM cannot serve with adaspec as asked; vLLM's own callers expect a `ValueError`."""


class EvaluationError(AdaspecError):
    """An evaluation cannot be run as asked."""


class DraftError(AdaspecError):
    """The n-gram index was asked about a request that it does not hold, or in a wrong shape."""


_INSTEAD = {
    "write a class with decide(batch) and, if it learns, learn(report) (see docs/api.md)": (
        "BasePolicy start(setup) holds_drafter(load) forwards(batch)"
    ),
    "train the policy again": "static_tuned async_static_tuned",
    "use budget:K": "ema",
    "use hybrid-splice": "hybrid-agree hybrid-until",
    "use fixed:neural:K": "fixed:neural-until",
    "use fixed:ngram:K:MIN": "fixed:ngram-vllm",
    "use python eval/paper/table.py TRACES": "--protocol protocol",
    "eval replays drafts of up to 48 tokens; from Python give cap=N": "--cap",
    "a cross-fit's report stands by itself: leave it out": "--crossfit-report",
    "use 'h100-llama-3.1-8b-paper', or python eval/paper/table.py TRACES": "specdecode-bench",
    "whatever copies finds ended answers: serve with ring_tokens and ring_file": (
        "--memory memory memory_bytes memory_dir"
    ),
    "leave out 'memory', and give --warm TRACES or serve with ring_tokens": (
        "fixed:memory hybrid-memory static:memory ngram-memory neural-memory combine-memory "
        "plan-memory plan-splice-memory"
    ),
    "/metrics say what is drafted, and what comes of it": "log_decisions_per_s",
    "record requests as they are served, by trace_dir and record_fraction": "logged vllm-responses",
    "use python eval/decide.py in a checkout": "bench",
    "judge a policy on recorded requests: adaspec eval TRACES --policy DIR": "shadow",
    "num_speculative_tokens limits a draft, decisions how many are verified": "max_drafted_tokens",
    "a trace calls the model by its folder or hub id": "target --target",
    "every request of a trace says its own max_tokens": "sampling",
    "where a full disk ended a recording, the same command goes on": "--max-trace-bytes",
    "decisions weigh what long contexts take: leave it out": "max_context_tokens",
    "the policy decides; give 'adaspec': 'off' for no drafts": "adaspec_cap adaspec_source",
}
GONE = {word: instead for instead, words in _INSTEAD.items() for word in words.split()}
"""Names of an earlier version (specs, options, keys, rows), and what to use in their place."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or that a word of an earlier version went, or an empty string."""
    if word in GONE:
        return f": it went in 0.2; {GONE[word]}"
    words = list(known)
    # Letters that changed places are likelier than one too many: 'modle' is 'model', not 'mode'.
    close = [each for each in words if sorted(each) == sorted(word)]
    close += difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_word(word: object, known: Iterable[str], what: str, error: type[AdaspecError]) -> None:
    """Raise an `error` unless the word given as `what` is one of the known ones."""
    words = list(known)
    if word not in words:
        close = nearest(word.lower(), words) if isinstance(word, str) else ""
        raise error(f"{what} is {shown(word)}{close} (known: {', '.join(words)})")


def shown(value: object) -> str:
    """A value as error messages quote it: on one line, and short however large it is."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple) and len(value) > 8:
        return f"a list of {len(value)}"
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # nested too deep, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def printable(text: str) -> str:
    """The text with ? for characters that could control a terminal, as names in files may have."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
