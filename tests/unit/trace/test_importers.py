import json

import numpy as np
import pytest
from refusals import refusal

from adaspec.errors import TraceError
from adaspec.trace import importers
from adaspec.trace.importers import UNPAIRED, import_trace
from adaspec.trace.reader import TraceReader

PLAIN = {"prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}
PUBLIC = {
    "id": "7",
    "prompt_token_ids": [1, 2, 3],
    "generated_token_ids": [4, 5, 6, 7],
    "acc_eagle": {"acc_len": [1, 3, 2, 1]},
    "acc_ngram": {"acc_len": [1, 1, 1, 6]},
}
ASKED = [{"role": "user", "content": "ab"}]
SAID = {"role": "assistant", "content": "cd"}
CHAT = {"messages": [*ASKED, SAID]}


class Letters:
    """A tokenizer whose tokens are letters; its chat template marks who speaks."""

    def get_vocab(self):
        return {chr(at): at for at in range(128)}

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def apply_chat_template(self, messages, **settings):
        assert settings == {"add_generation_prompt": True, "tokenize": False}
        return "".join(f"{each['role'][0]}:{each['content']};" for each in messages) + "a:"


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    monkeypatch.setattr(importers, "load_tokenizer", lambda name: Letters())


def load(folder, format, *lines, **options):
    """What the import of these lines of talk.jsonl returns, and the trace's manifest, requests."""
    file = folder / "talk.jsonl"
    written = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(written) + "\n")
    if format == "texts":
        options["tokenizer"] = "a/model"
    summary = import_trace(format, [file], folder / "t", force=True, **options)
    reader = TraceReader(folder / "t")
    return summary, reader.manifest, list(reader.requests())


def test_tokens_alone_make_a_trace_without_a_neural_drafter(tmp_path):
    lines = (PLAIN, PLAIN | {"workload": "edits"}, PLAIN, PLAIN | {"id": 9})
    _, manifest, requests = load(tmp_path, "jsonl", *lines, target="a/target")
    named = [(request.workload, request.id) for request in requests]
    assert named == [("talk", "0"), ("edits", "0"), ("talk", "1"), ("talk", "9")]
    assert requests[0].output_tokens.tolist() == [3, 4]
    assert requests[0].neural_accepted is None
    assert (manifest.target, manifest.drafter, manifest.neural_cap) == ("a/target", None, None)


def test_the_drafter_is_who_the_user_says_where_one_drafted(tmp_path):
    with pytest.raises(TraceError, match=r"'a/head'.*holds no neural counts: leave it out"):
        load(tmp_path, "jsonl", PLAIN, drafter="a/head")
    assert not (tmp_path / "t").exists()
    line = PLAIN | {"neural_accepted": [None, 0]}
    summary, manifest, _ = load(tmp_path, "jsonl", line, drafter="a/head")
    assert summary["drafter"] == manifest.drafter == "a/head"


def test_neural_columns_are_read_and_the_caps_found(tmp_path):
    line = {
        "prompt_token_ids": [1],
        "output_token_ids": [3, 4, 5, 6],
        "neural_accepted": [None, 2, 0, 0],
        "drafted_tokens": [None, [4, 5, 9], [8], []],
        "logprob": [[], [-0.1, None, -2], [-3.5], []],
        "ngram_accepted": [None, 0, 7, 0],
        "max_tokens": 4,
    }
    _, manifest, (request, bare) = load(tmp_path, "jsonl", line, PLAIN)
    assert (manifest.neural_cap, manifest.draft_cap) == (3, 3)
    assert manifest.confidences == ("logprob",)
    assert request.neural_accepted.tolist() == [-1, 2, 0, 0]
    assert request.drafted_tokens.tolist() == [[-1] * 3, [4, 5, 9], [8, -1, -1], [-1] * 3]
    np.testing.assert_array_equal(
        request.confidences[1, :, 0], np.array([-0.1, np.nan, -2], np.float32)
    )
    assert bare.neural_accepted is None
    assert (request.max_tokens, bare.max_tokens) == (4, None)


def test_public_counts_lose_the_bonus_token_and_entry_0_is_null(tmp_path):
    longer = {"id": "8", "acc_eagle": {"acc_len": [1, 1, 3, 2, 1]}, "acc_medusa": 1}
    summary, _, (request, unpaired) = load(tmp_path, "specdecode-bench", PUBLIC, PUBLIC | longer)
    assert (request.workload, request.id) == ("talk", "7")
    assert request.prompt_tokens.tolist() == PUBLIC["prompt_token_ids"]
    assert request.output_tokens.tolist() == PUBLIC["generated_token_ids"]
    assert request.neural_accepted.tolist() == [-1, 2, 1, 0]
    assert request.ngram_accepted.tolist() == [-1, 0, 0, 5]
    # A list of another length than the output is of another run.
    assert len(unpaired.neural_accepted) == 5
    assert not unpaired.paired
    assert summary["requests"] == 2
    assert summary["notes"] == {"key 'acc_medusa' ignored": 1, UNPAIRED: 1}


@pytest.mark.parametrize(
    "line",
    [
        CHAT,
        {"messages": ASKED, "completion": "cd"},
        {
            "request": {"messages": ASKED, "max_tokens": 5},
            "response": {"choices": [{"message": SAID}]},
        },
    ],
)
def test_a_chat_is_read_in_whatever_form_it_was_kept(tmp_path, line):
    _, manifest, (request,) = load(tmp_path, "texts", line)
    assert told(request) == ("u:ab;a:", "cd")
    assert request.max_tokens == (5 if "request" in line else None)
    assert manifest.target == manifest.tokenizer == "a/model"
    assert manifest.vocabulary_hash is not None
    assert manifest.vocabulary_hash.startswith("128-")


def told(request):
    prompt, output = map(bytes, (request.prompt_tokens.tolist(), request.output_tokens.tolist()))
    return prompt.decode(), output.decode()


def test_completions_begin_as_the_tokenizer_begins_a_text_and_empty_answers_are_noted(tmp_path):
    answered = {"prompt": "ab", "completion": "cd", "id": "x", "workload": "w"}
    empty = {"request": {"prompt": "ab"}, "response": {"choices": [{"text": ""}]}}
    summary, _, (request,) = load(tmp_path, "texts", answered, empty)
    assert told(request) == ("\x01ab", "cd")
    assert (request.workload, request.id) == ("w", "x")
    assert summary["notes"] == {"empty answers left out": 1}


SOUND = {"jsonl": PLAIN | {"id": "7"}, "specdecode-bench": PUBLIC, "texts": CHAT}
NEURAL = {"neural_accepted": [None, 0], "drafted_tokens": [[], [5]]}
BAD = [
    ("jsonl", {"output_ids": [1]}, "unknown key 'output_ids'; did you mean 'output_token_ids'?"),
    ("jsonl", NEURAL | {"drafted_tokens": [[], [-5]]}, "has a negative token id or a gap"),
    ("jsonl", NEURAL | {"margin": [[], []]}, "'margin' has not one number per drafted token"),
    ("specdecode-bench", "{", "broken JSON (Input data was truncated"),
    ("specdecode-bench", {"id": None}, "'id' is missing"),
    ("specdecode-bench", {"id": "7"}, "id '7' occurs twice in workload 'talk'"),
    ("specdecode-bench", {"acc_eagle": [1, 2]}, "'acc_eagle' holds no 'acc_len'"),
    ("specdecode-bench", {"acc_eagle": {"acc_len": [1, 23] + 40 * [1]}}, "neural_cap=20"),
    ("texts", {"messages": ASKED}, "has no answer as a text"),
    ("texts", {"prompt": "ab"}, "needs one of 'messages', a list, and 'prompt'"),
    ("texts", {"response": "cd"}, "'response': is a str, expected an object"),
    ("texts", {"response": {"choices": []}}, "holds no choices"),
    ("texts", {"messages": [{"content": "ab"}], "completion": "c"}, "template does not take"),
]


@pytest.mark.parametrize(("format", "change", "message"), BAD)
def test_a_bad_line_is_named_by_file_and_number_and_leaves_nothing(
    tmp_path, format, change, message
):
    sound = SOUND[format]
    bad = sound | {"id": "8"} | change if isinstance(change, dict) else change
    said = refusal(TraceError, load, tmp_path, format, sound, bad)
    assert said.startswith(f"{tmp_path}/talk.jsonl line 2: ")
    assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["talk.jsonl"]


def test_of_a_folder_the_files_are_read_that_are_named_as_recordings_are(tmp_path):
    (tmp_path / "combined_cnn.jsonl").write_text(json.dumps(PUBLIC))
    (tmp_path / "readme.jsonl").write_text('{"not": "a recording"}')
    assert import_trace("specdecode-bench", tmp_path, tmp_path / "t")["workloads"] == {"cnn": 1}
