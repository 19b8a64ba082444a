"""Reads prompts to record, one JSON object per line.

    {"workload": "chat", "id": "7", "messages": [{"role": "user", "content": "Hello"}]}

A prompt has one of `text`, `messages` (to which the model's chat template is applied) and
`prompt_token_ids`. `workload` is the file's name by default; prompts without an `id` are numbered
within their workload. `max_tokens` limits the output of that prompt.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from adaspec.errors import TraceError
from adaspec.records import convert
from adaspec.trace.importers.lines import find_files, lines_of, name_of, workload_of
from adaspec.trace.importers.texts import chat_tokens

_FORMS = ("text", "messages", "prompt_token_ids")
"""The keys by which a prompt may be given."""
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line of a file says of a prompt."""

    workload: str
    id: str
    text: Annotated[str, Meta(min_length=1, description="a text")] | None = None
    messages: (
        Annotated[list[dict[str, Any]], Meta(min_length=1, description="a list of objects")] | None
    ) = None
    prompt_token_ids: (
        Annotated[list[Token], Meta(min_length=1, description="a list of token ids")] | None
    ) = None
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None


class Prompt(Line, frozen=True, kw_only=True):
    """A prompt to record, with its name and its place in a file."""

    where: str

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
        workload = name_of(record.get("workload", workload_of(source)), "workload", where)
        names = {
            "workload": workload,
            "id": name_of(record.get("id", numbers[workload]), "id", where),
        }
        numbers[workload] += 1
        line = convert(record | names, Line, where, TraceError)
        forms = [key for key in _FORMS if getattr(line, key) is not None]
        if len(forms) != 1:
            found = ", ".join(forms) or "none"
            raise TraceError(f"{where}: needs one of {', '.join(_FORMS)}; found {found}")
        prompt = Prompt(**structs.asdict(line), where=where)
        if prompt.key in prompts:
            raise TraceError(
                f"{where}: id {prompt.id!r} of workload {prompt.workload!r} stands already in "
                f"{prompts[prompt.key].where}: rename or remove one"
            )
        prompts[prompt.key] = prompt
    if not prompts:
        raise TraceError(f"{file}: holds no prompts")
    return list(prompts.values())
