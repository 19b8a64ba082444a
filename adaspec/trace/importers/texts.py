"""Prompts and answers as texts: chat logs, fine-tuning files, and saved requests with responses.

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]}
    {"prompt": "Once upon", "completion": " a time"}
    {"request": {"messages": [...]}, "response": {"choices": [{"message": {"content": "Hi."}}]}}

The last pairs what was sent to a server with what it answered. `workload`, `id` and `max_tokens`
are as in jsonl. What a drafter would have said is not known: such a trace serves for copies alone.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from adaspec.errors import TraceError
from adaspec.records import fits
from adaspec.trace.identity import model_name, vocabulary_hash
from adaspec.trace.importers.lines import Format, Line, Record, as_object
from adaspec.trace.manifest import Manifest, TokenLimit


def format_of(name: str) -> Format:
    """The format of texts that become tokens by the tokenizer of that name."""
    tokenizer, model = load_tokenizer(name), model_name(name)
    vocabulary = vocabulary_hash(tokenizer.get_vocab())
    manifest = Manifest(target=model, tokenizer=model, vocabulary_hash=vocabulary)
    return partial(_line, tokenizer), manifest


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, by its folder or hub id."""
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name)
    except ImportError as error:
        raise TraceError(f"texts need transformers ({error}): pip install transformers") from error
    except Exception as error:
        advice = "give a model's folder, or a hub id"
        raise TraceError(f"tokenizer '{name}' cannot be read: {_said(error)}: {advice}") from error


def chat_tokens(tokenizer: Any, messages: list[Any], where: str) -> list[int]:
    """The token ids of a chat that the assistant is to answer."""
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:
        raise TraceError(
            f"{where}: the model's chat template does not take these messages: {_said(error)}"
        ) from error
    return list(tokenizer.encode(text, add_special_tokens=False))


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _line(tokenizer: Any, record: Record, where: str, notes: Counter[str]) -> Line:
    """A line of texts in the words of jsonl."""
    asked = as_object(record.get("request", record), f"{where}: 'request'")
    messages, prompt = asked.get("messages"), asked.get("prompt")
    answer = _answer(record, where)
    if answer is None and isinstance(messages, list) and messages:
        *messages, last = messages
        if isinstance(last, dict) and last.get("role") == "assistant":
            answer = last.get("content")
    if isinstance(messages, list) == isinstance(prompt, str):
        raise TraceError(f"{where}: needs one of 'messages', a list, and 'prompt', a text")
    if not isinstance(answer, str):
        raise TraceError(f"{where}: has no answer as a text, in messages, completion or response")
    limit = asked.get("max_tokens")
    if isinstance(messages, list):
        tokens = chat_tokens(tokenizer, messages, where)
    else:
        tokens = tokenizer.encode(prompt)
    return Line(
        prompt_token_ids=tokens,
        output_token_ids=tokenizer.encode(answer, add_special_tokens=False),
        id=record.get("id"),
        workload=record.get("workload"),
        max_tokens=limit if fits(limit, TokenLimit) else None,
    )


def _answer(record: Record, where: str) -> Any:
    """What a record says was answered, apart from its messages."""
    if "response" not in record:
        return record.get("completion")
    choices = as_object(record["response"], f"{where}: 'response'").get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        raise TraceError(f"{where}: the response holds no choices")
    message = first.get("message")
    return message.get("content") if isinstance(message, dict) else first.get("text")
