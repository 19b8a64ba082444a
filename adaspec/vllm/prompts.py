"""Reads prompts to record, one JSON object per line.

    {"workload": "chat", "id": "7", "messages": [{"role": "user", "content": "Hello"}]}

A prompt has one of `text` (or `prompt`), `messages` (to which the model's chat template is applied)
and `prompt_token_ids` (or `token_ids`). `workload` is the file's name by default; prompts without
an `id` are numbered within their workload. `max_tokens` limits the output of that prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.errors import TraceError, nearest
from adaspec.trace.importers.lines import (
    Lines,
    Record,
    find_files,
    name_of,
    whole_numbers,
    workload_of,
)

_FORMS = ("text", "prompt", "messages", "prompt_token_ids", "token_ids")
_KEYS = ("workload", "id", "max_tokens", *_FORMS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to record, with its name and its place in a file."""

    workload: str
    id: str
    where: str
    text: str | None = None
    messages: list[Any] | None = None
    token_ids: list[int] | None = None
    max_tokens: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The prompt's key in a trace."""
        return self.workload, self.id

    def tokens(self, tokenizer: Any) -> list[int]:
        """The prompt's token ids."""
        if self.token_ids is not None:
            return self.token_ids
        if self.messages is None:
            return list(tokenizer.encode(self.text))
        try:
            text = tokenizer.apply_chat_template(
                self.messages, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            line = " ".join(str(error).split())[:200]
            raise TraceError(
                f"{self.where}: the model's chat template does not take these messages: {line}"
            ) from error
        return list(tokenizer.encode(text, add_special_tokens=False))


def read_prompts(file: Path) -> list[Prompt]:
    """All prompts of a file; raises a `TraceError` that names the first invalid line."""
    lines = Lines(find_files([file], ("*.jsonl",)))
    numbers: Counter[str] = Counter()
    prompts: dict[tuple[str, str], Prompt] = {}
    for file_path in lines.files:
        for where, record in lines.of(file_path):
            prompt = _prompt(record, where, workload_of(file_path), numbers)
            if prompt.key in prompts:
                raise TraceError(
                    f"{where}: id {prompt.id!r} of workload {prompt.workload!r} stands already in "
                    f"{prompts[prompt.key].where}: rename or remove one"
                )
            prompts[prompt.key] = prompt
    if not prompts:
        raise TraceError(f"{file}: holds no prompts")
    return list(prompts.values())


def _prompt(record: Record, where: str, default: str, numbers: Counter[str]) -> Prompt:
    for key in record:
        if key not in _KEYS:
            raise TraceError(f"{where}: unknown key '{key}'{nearest(key, _KEYS)}")
    forms = [key for key in _FORMS if record.get(key) is not None]
    if len(forms) != 1:
        form_names = ", ".join(forms) or "none"
        raise TraceError(f"{where}: needs one of {', '.join(_FORMS)}; found {form_names}")
    workload = name_of(record.get("workload", default), "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    form, value = forms[0], record[forms[0]]
    limit = record.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise TraceError(f"{where}: max_tokens={limit!r} is not a whole number from 1 on")
    content: dict[str, Any]
    if form == "messages":
        content = {"messages": _messages(value, where)}
    elif form in ("text", "prompt"):
        content = {"text": _text(value, form, where)}
    else:
        content = {"token_ids": _token_ids(value, form, where)}
    return Prompt(
        workload=workload,
        id=name_of(record.get("id", number), "id", where),
        where=where,
        max_tokens=limit,
        **content,
    )


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise TraceError(f"{where}: '{key}' is a {type(value).__name__}, expected a text")
    return value


def _messages(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(m, dict) for m in value):
        raise TraceError(f"{where}: 'messages' is not a list of objects")
    return value


def _token_ids(value: Any, key: str, where: str) -> list[int]:
    tokens = whole_numbers(value, key, where)
    if not len(tokens) or tokens.min() < 0:
        raise TraceError(f"{where}: '{key}' is not a list of token ids")
    return [int(token) for token in tokens]
