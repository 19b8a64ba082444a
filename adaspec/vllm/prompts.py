"""Prompts to record, one JSON object a line.

    {"workload": "chat", "id": "7", "messages": [{"role": "user", "content": "Hello"}]}

One of `text` (or `prompt`), `messages` (the model's chat template is applied) and
`prompt_token_ids` (or `token_ids`). Without `workload` it is the file's name; without `id` prompts
are numbered within their workload. `max_tokens` bounds that one output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
    """A prompt to record, and under which name."""

    workload: str
    id: str
    where: str
    text: str | None = None
    messages: list[Any] | None = None
    token_ids: list[int] | None = None
    max_tokens: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What a trace knows it by."""
        return self.workload, self.id

    def tokens(self, tokenizer: Any) -> list[int]:
        """Its token ids."""
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
    """All prompts of a file; a `TraceError` names the first line that is none."""
    lines = Lines(find_files([file], ("*.jsonl",)))
    numbers: Counter[str] = Counter()
    found: dict[tuple[str, str], Prompt] = {}
    for each in lines.files:
        for where, record in lines.of(each):
            prompt = _prompt(record, where, workload_of(each), numbers)
            if prompt.key in found:
                raise TraceError(
                    f"{where}: id {prompt.id!r} of workload {prompt.workload!r} stands already in "
                    f"{found[prompt.key].where}: rename or remove one"
                )
            found[prompt.key] = prompt
    if not found:
        raise TraceError(f"{file}: holds no prompts")
    return list(found.values())


def _prompt(record: Record, where: str, default: str, numbers: Counter[str]) -> Prompt:
    for key in record:
        if key not in _KEYS:
            raise TraceError(f"{where}: unknown key '{key}'{nearest(key, _KEYS)}")
    forms = [key for key in _FORMS if record.get(key) is not None]
    if len(forms) != 1:
        found = ", ".join(forms) or "none"
        raise TraceError(f"{where}: needs one of {', '.join(_FORMS)}; found {found}")
    workload = name_of(record.get("workload", default), "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    form, value = forms[0], record[forms[0]]
    most = record.get("max_tokens")
    if most is not None and (type(most) is not int or most < 1):
        raise TraceError(f"{where}: max_tokens={most!r} is not a whole number from 1 on")
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "text": lambda: {"text": _text(value, form, where)},
        "prompt": lambda: {"text": _text(value, form, where)},
        "messages": lambda: {"messages": _messages(value, where)},
        "prompt_token_ids": lambda: {"token_ids": _token_ids(value, form, where)},
        "token_ids": lambda: {"token_ids": _token_ids(value, form, where)},
    }
    return Prompt(
        workload=workload,
        id=name_of(record.get("id", number), "id", where),
        where=where,
        max_tokens=most,
        **make[form](),
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
    found = whole_numbers(value, key, where)
    if not len(found) or found.min() < 0:
        raise TraceError(f"{where}: '{key}' is not a list of token ids")
    return [int(token) for token in found]
