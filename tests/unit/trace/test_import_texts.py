"""Chats and completions as texts become tokens by a tokenizer, in every form that clients keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaspec.errors import TraceError
from adaspec.trace.importers import texts
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.reader import TraceReader
from adaspec.trace.schema import Request

ASKED = [{"role": "user", "content": "ab"}]
SAID = {"role": "assistant", "content": "cd"}


class Letters:
    """A tokenizer whose tokens are letters; its chat template marks who speaks."""

    def get_vocab(self) -> dict[str, int]:
        return {chr(at): at for at in range(128)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def apply_chat_template(self, messages: list[Any], **settings: object) -> str:
        assert settings == {"add_generation_prompt": True, "tokenize": False}
        return "".join(f"{each['role'][0]}:{each['content']};" for each in messages) + "a:"


@pytest.fixture(autouse=True)
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "load_tokenizer", lambda name: Letters())


def load(tmp_path: Path, *records: dict[str, Any]) -> list[Request]:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in records))
    import_trace("texts", [file], tmp_path / "t", tokenizer="a/model", force=True)
    return list(TraceReader(tmp_path / "t").requests())


def told(request: Request) -> tuple[str, str]:
    return tuple(
        "".join(map(chr, tokens)) for tokens in (request.prompt_tokens, request.output_tokens)
    )


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [*ASKED, SAID]},
        {"messages": ASKED, "completion": "cd"},
        {
            "request": {"messages": ASKED, "max_tokens": 5},
            "response": {"choices": [{"message": SAID}]},
        },
    ],
)
def test_a_chat_is_read_in_whatever_form_it_was_kept(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    (request,) = load(tmp_path, record)
    assert told(request) == ("u:ab;a:", "cd")
    assert (request.workload, request.id) == ("talk", "0")
    assert request.max_tokens == (5 if "request" in record else None)
    manifest = TraceReader(tmp_path / "t").manifest
    assert manifest.target == manifest.tokenizer == "a/model"
    assert manifest.vocabulary_hash is not None
    assert manifest.vocabulary_hash.startswith("128-")


def test_completions_begin_as_the_tokenizer_begins_a_text_and_empty_answers_are_noted(
    tmp_path: Path,
) -> None:
    (request,) = load(
        tmp_path,
        {"prompt": "ab", "completion": "cd", "id": "x", "workload": "w"},
        {"request": {"prompt": "ab"}, "response": {"choices": [{"text": ""}]}},
    )
    assert told(request) == ("\x01ab", "cd")
    assert (request.workload, request.id) == ("w", "x")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": ASKED}, "has no answer as a text"),
        ({"prompt": "ab", "messages": [*ASKED, SAID]}, "one of 'messages'.*'prompt'"),
        ({"completion": "cd"}, "one of 'messages'.*'prompt'"),
        ({"prompt": "ab", "response": "cd"}, "'response': is a str, expected an object"),
        ({"prompt": "ab", "response": {"choices": []}}, "holds no choices"),
        ({"messages": [{"content": "ab"}], "completion": "c"}, "chat template does not take"),
    ],
)
def test_what_is_no_prompt_with_an_answer_is_refused_with_its_line(
    tmp_path: Path, record: dict[str, Any], said: str
) -> None:
    with pytest.raises(TraceError, match=rf"talk.jsonl line 1: .*{said}"):
        load(tmp_path, record)


def test_a_tokenizer_goes_with_texts_and_with_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="format 'texts' needs a tokenizer"):
        import_trace("texts", [tmp_path], tmp_path / "t")
    with pytest.raises(TraceError, match="format 'texts' needs a tokenizer"):
        import_trace("jsonl", [tmp_path], tmp_path / "t", tokenizer="a/model")
