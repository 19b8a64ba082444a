"""Reads prompts to record, one JSON object per line.

    {"workload": "chat", "id": "7", "messages": [{"role": "user", "content": "Hello"}]}

A prompt has one of `text`, `messages` (to which the model's chat template is applied) and
`prompt_token_ids`. `workload` is the file's name by default; prompts without an `id` are numbered
within their workload. `max_tokens` limits the output of that prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.documents import Rule, check_keys, check_values, matching, or_null, whole
from adaspec.errors import TraceError
from adaspec.trace.importers.lines import Record, find_files, lines_of, name_of, workload_of
from adaspec.trace.importers.texts import chat_tokens

_FORMS = ("text", "messages", "prompt_token_ids")
"""The keys by which a prompt may be given."""
_KEYS = ("workload", "id", "max_tokens", *_FORMS)


def _list_of(allowed: Callable[[Any], bool], expected: str) -> Rule:
    return or_null(
        Rule(lambda value: isinstance(value, list) and value and all(map(allowed, value)), expected)
    )


_RULES = {
    "text": or_null(matching("(?s).+", "a text")),
    "messages": _list_of(lambda item: isinstance(item, dict), "a list of objects"),
    "prompt_token_ids": _list_of(
        lambda item: type(item) is int and 0 <= item < 1 << 31, "a list of token ids"
    ),
    "max_tokens": or_null(whole(1, 1 << 31)),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to record, with its name and its place in a file."""

    workload: str
    id: str
    where: str
    text: str | None = None
    messages: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    max_tokens: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The prompt's key in a trace."""
        return self.workload, self.id

    def tokens(self, tokenizer: Any) -> list[int]:
        """The prompt's token ids."""
        if self.prompt_token_ids is not None:
            return self.prompt_token_ids
        if self.messages is None:
            return list(tokenizer.encode(self.text))
        return chat_tokens(tokenizer, self.messages, self.where)


def read_prompts(file: Path) -> list[Prompt]:
    """All prompts of a file; raises a `TraceError` that names the first invalid line."""
    numbers: Counter[str] = Counter()
    prompts: dict[tuple[str, str], Prompt] = {}
    for source, where, record in lines_of(find_files([file], "*.jsonl")):
        prompt = _prompt(record, where, workload_of(source), numbers)
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
    check_keys(record, _KEYS, where, TraceError, optional=_KEYS)
    forms = [key for key in _FORMS if record.get(key) is not None]
    if len(forms) != 1:
        form_names = ", ".join(forms) or "none"
        raise TraceError(f"{where}: needs one of {', '.join(_FORMS)}; found {form_names}")
    workload = name_of(record.get("workload", default), "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    prompt = Prompt(
        workload=workload,
        id=name_of(record.get("id", number), "id", where),
        where=where,
        max_tokens=record.get("max_tokens"),
        **{forms[0]: record[forms[0]]},
    )
    check_values(prompt, _RULES, where, TraceError)
    return prompt
