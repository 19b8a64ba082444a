import json
from types import SimpleNamespace

import pytest
from refusals import refusal

from adaspec.errors import TraceError
from adaspec.vllm.commands import read_prompts


def written(tmp_path, *records):
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    return file


def test_text_messages_and_tokens_are_prompts(tmp_path):
    tokenizer = SimpleNamespace(
        encode=lambda text, add_special_tokens=True: [1] * add_special_tokens + [len(text)],
        apply_chat_template=lambda messages, **_: "".join(each["content"] for each in messages),
    )
    chat = [{"role": "user", "content": "hello"}]
    prompts = read_prompts(
        written(
            tmp_path,
            {"text": "hey"},
            {"messages": chat, "workload": "chat", "id": "a"},
            {"prompt_token_ids": [4, 5], "max_tokens": 7},
        )
    )
    assert [each.key for each in prompts] == [("mine", "0"), ("chat", "a"), ("mine", "1")]
    assert [each.tokens(tokenizer) for each in prompts] == [[1, 3], [5], [4, 5]]
    assert prompts[2].max_tokens == 7


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"txt": "a"}, "did you mean 'text'"),
        ({"text": "a", "prompt_token_ids": [1]}, "found text, prompt_token_ids"),
        ({"prompt_token_ids": []}, "expected a list of token ids"),
        ({"prompt_token_ids": [-1]}, "expected a list of token ids"),
        ({"messages": ["a"]}, "expected a list of objects"),
        ({"text": "a", "max_tokens": 0}, "max_tokens is 0"),
        ({"text": "a", "id": ""}, "'id' is ''"),
        ({"text": "b", "id": "x"}, "mine.jsonl line 1"),  # which has the same name
    ],
)
def test_what_is_no_prompt_is_named_by_its_line(tmp_path, record, says):
    path = written(tmp_path, {"text": "fine", "id": "x"}, record)
    said = refusal(TraceError, read_prompts, path)
    assert says in said
    assert "mine.jsonl line 2" in said
