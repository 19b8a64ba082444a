"""The formats that can be imported, and the function that turns any of them into a trace.

**jsonl**

    {"id": "7", "workload": "chat", "prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}

Without `workload`, the workload is the file's name; without `id`, requests are numbered within
their workload. Optional keys, indexed by position with entry 0 null (or [] for lists), are
`neural_accepted`, `ngram_accepted`, `drafted_tokens` (a list per position), and `logprob`, `margin`
and `entropy` (one number or null per drafted token). `max_tokens` is the request's limit.

**specdecode-bench**: `combined_*.jsonl` of github.com/SpecDecode-Bench/simulator, where
`acc_len[i]` belongs to the context prompt + generated[:i] and counts the bonus token. Its lists are
of different runs: a request whose EAGLE list is not as long as its output is not paired, and n-gram
counts may exceed the output's end.

**texts**: prompts and answers as chat logs, fine-tuning files, or saved requests with responses:

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]}
    {"prompt": "Once upon", "completion": " a time"}
    {"request": {"messages": [...]}, "response": {"choices": [{"message": {"content": "Hi."}}]}}

The last pairs what was sent to a server with what it answered. `workload`, `id` and `max_tokens`
are as in jsonl. What a drafter would have said is not known: such a trace serves for copies alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, structs
from numpy.typing import NDArray

from adaspec.errors import TraceError, check_word
from adaspec.files import AnyPath
from adaspec.records import convert, fits, parse_json
from adaspec.trace.identity import model_name, vocabulary_hash
from adaspec.trace.reader import Paths, paths_of
from adaspec.trace.schema import CONFIDENCES, Manifest, Request, TokenLimit, as_array, manifest_for
from adaspec.trace.writer import whole_trace

Record = dict[str, Any]
Progress = Callable[[int, int], None]
"""A function that is called with the bytes read so far and the bytes in total."""
Layers = (
    Annotated[list[list[Any] | None], Meta(description="a list with a list per position")] | None
)


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line says of a request, in the words of jsonl; numpy reads its numbers."""

    prompt_token_ids: list[Any]
    output_token_ids: list[Any]
    id: Any = None
    workload: Any = None
    max_tokens: TokenLimit | None = None
    neural_accepted: Any = None
    ngram_accepted: Any = None
    drafted_tokens: Layers = None
    logprob: Layers = None
    margin: Layers = None
    entropy: Layers = None


Format = tuple[Callable[[Record, str, Counter[str]], Line], Manifest | None]
"""What says a line in the words of jsonl, and may note what it ignores; and the manifest, or None
where only all requests together say what the caps are."""


def workload_of(file: Path) -> str:
    """The workload of a file: its name without ending and `combined_`."""
    return file.stem.removeprefix("combined_")


def find_files(sources: Iterable[Path], *patterns: str) -> list[Path]:
    """The files at `sources`; of a folder, those that match the first pattern with any match."""
    files: list[Path] = []
    for source in sources:
        found = [source]
        if source.is_dir():
            found = next(filter(None, (sorted(source.glob(each)) for each in patterns)), [])
        if not found:
            raise TraceError(f"{source}: the folder holds no {' or '.join(patterns)}")
        for file in found:
            if not file.is_file():  # reading a pipe could block
                what = "is not a file" if file.exists() else "there is no such file or folder"
                raise TraceError(f"{file}: {what}: name files, or folders of them")
        files += found
    if not files:
        raise TraceError("nothing to import: name at least one file or folder")
    return files


def lines_of(
    files: list[Path], progress: Progress | None = None
) -> Iterator[tuple[Path, str, Record]]:
    """Every non-empty line as an object, with its file, and with file and line for errors."""
    done, total = 0, sum(file.stat().st_size for file in files)
    for file in files:
        try:
            with file.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    where = f"{file} line {number}"
                    if line.strip():
                        yield file, where, as_object(parse_json(line, where, TraceError), where)
                    done += len(line)
                    if progress is not None:
                        progress(done, total)
        except OSError as error:
            raise TraceError(f"{file}: cannot be read ({error.strerror})") from error


def as_object(value: Any, where: str) -> Record:
    """A JSON object; any other JSON value is refused."""
    if not isinstance(value, dict):
        raise TraceError(f"{where}: is a {type(value).__name__}, expected an object")
    return value


def name_of(value: Any, key: str, where: str) -> str:
    """The name of a workload or request, which may be given as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TraceError(f"{where}: '{key}' is {value!r:.60}, expected a text or a number")
    return str(value)


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


TEXTS = "texts"
UNPAIRED = "neural counts of another length than their output, and so not paired with it"
_PUBLIC = ("id", "prompt_token_ids", "generated_token_ids", "acc_eagle", "acc_ngram")


def _plain_line(record: Record, where: str, notes: Counter[str]) -> Line:
    return convert(record, Line, where, TraceError)


def _public_line(record: Record, where: str, notes: Counter[str]) -> Line:
    for key in record.keys() - set(_PUBLIC):
        notes[f"key '{key}' ignored"] += 1
    for key in _PUBLIC[:3]:
        if record.get(key) is None:
            raise TraceError(f"{where}: '{key}' is missing")
    return Line(
        id=record["id"],
        prompt_token_ids=record["prompt_token_ids"],
        output_token_ids=record["generated_token_ids"],
        neural_accepted=_without_bonus(record, "acc_eagle", where),
        ngram_accepted=_without_bonus(record, "acc_ngram", where),
    )


def _without_bonus(record: Record, key: str, where: str) -> NDArray[np.int16] | None:
    """Accepted counts without the bonus token, null at entry 0; None if there is no list."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, dict) or "acc_len" not in value:
        raise TraceError(f"{where}: '{key}' holds no 'acc_len'")
    accepted = as_array(value["acc_len"], np.int16, f"{where}: {key}.acc_len") - np.int16(1)
    accepted[:1] = -1
    return accepted


FORMATS: dict[str, Format] = {
    # The engine of the public recordings drafted 20 tokens at each position, from either source.
    "specdecode-bench": (_public_line, Manifest(drafter="eagle", neural_cap=20, engine="vllm")),
    "jsonl": (_plain_line, None),
}
PATTERNS = {"specdecode-bench": ("combined_*.jsonl", "*.jsonl")}
"""The files that are read of a folder, by the first pattern that any has; else `*.jsonl`."""


def import_trace(
    format: str,
    sources: Paths,
    out: AnyPath,
    *,
    target: str | None = None,
    drafter: str | None = None,
    vocabulary_size: int | None = None,
    tokenizer: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Turn recordings of a format into a trace at `out`, whole or not at all.

    `target` and `drafter` name the model served and its drafter, if the recording does not say;
    `vocabulary_size` is the number of its tokenizer's tokens. Texts need the `tokenizer` itself, by
    its folder or hub id.
    Returns what was imported: `target`, `drafter`, `requests`, `workloads` (the number of
    requests in each), and `notes` (what was left out, and how often). `inspect` says the rest.
    """
    check_word(format, [*FORMATS, TEXTS], "format", TraceError)
    if (tokenizer is None) == (format == TEXTS):
        raise TraceError(f"format '{TEXTS}' needs a tokenizer, and no other takes one")
    files = find_files(paths_of(sources), *PATTERNS.get(format, ("*.jsonl",)))
    line_of, manifest = FORMATS[format] if tokenizer is None else format_of(tokenizer)
    notes: Counter[str] = Counter()

    def requests() -> Iterator[tuple[str, Request]]:
        numbers: Counter[str] = Counter()
        for file, where, record in lines_of(files, progress):
            line = line_of(record, where, notes)
            request = _request_of(line, workload_of(file), numbers, where)
            if format == TEXTS and not len(request.output_tokens):
                notes["empty answers left out"] += 1
            else:
                yield where, request

    rows: Iterable[tuple[str, Request]] = requests()
    if manifest is None:
        rows = known = list(rows)
        manifest = manifest_for([request for _, request in known])
    if drafter is not None and manifest.neural_cap is None:
        raise TraceError(f"drafter '{drafter}': the recording holds no neural counts: leave it out")
    # Only the files' names, because a path may reveal the user.
    names = ", ".join(file.name for file in files[:8])
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    changes = {
        "source": f"import {format}: {names}{more}",
        "target": target,
        "drafter": drafter,
        "vocabulary_hash": None if vocabulary_size is None else str(vocabulary_size),
    }
    given = {name: value for name, value in changes.items() if value is not None}
    manifest = structs.replace(manifest, **given)
    workloads: Counter[str] = Counter()
    with whole_trace(Path(out), manifest, force) as writer:
        for where, row in rows:
            writer.add(row, where)
            workloads[row.workload] += 1
            if row.neural_accepted is not None and not row.paired:
                notes[UNPAIRED] += 1
        if not workloads:
            raise TraceError(f"{names}{more}: nothing to import was found there")
    return {
        "trace": str(out),
        "format": format,
        "target": manifest.target,
        "drafter": manifest.drafter,
        "requests": workloads.total(),
        "workloads": dict(workloads),
        "notes": dict(notes),
    }


def _request_of(line: Line, default: str, numbers: Counter[str], where: str) -> Request:
    """The request of a line, whose workload is the default one if it names none.

    `numbers` counts the requests of each workload, by which those without an id are numbered.
    """
    workload = default if line.workload is None else name_of(line.workload, "workload", where)
    number = numbers[workload]
    numbers[workload] += 1
    counts = {
        name: as_array(values, np.int16, f"{where}: {name}")
        for name in ("neural_accepted", "ngram_accepted")
        if (values := getattr(line, name)) is not None
    }
    return Request(
        workload=workload,
        id=str(number) if line.id is None else name_of(line.id, "id", where),
        prompt_tokens=as_array(line.prompt_token_ids, np.int32, f"{where}: prompt_token_ids"),
        output_tokens=as_array(line.output_token_ids, np.int32, f"{where}: output_token_ids"),
        max_tokens=line.max_tokens,
        **counts,
        **_drafts(line, where),
    )


def _drafts(line: Line, where: str) -> dict[str, NDArray[Any]]:
    """Drafted tokens and confidences, as wide as the longest draft of the request."""
    told = [name for name in CONFIDENCES if getattr(line, name) is not None]
    if line.drafted_tokens is None:
        if told:
            raise TraceError(f"{where}: '{told[0]}' without 'drafted_tokens'")
        return {}
    lengths = [len(draft or ()) for draft in line.drafted_tokens]
    width = max([1, *lengths])

    def table(name: str, kind: type[np.number[Any]], padding: int | None) -> NDArray[Any]:
        rows = [row or [] for row in getattr(line, name) or [None] * len(lengths)]
        if name in told and [len(row) for row in rows] != lengths:
            raise TraceError(f"{where}: '{name}' has not one number per drafted token")
        padded = [[*row, *[padding] * (width - len(row))] for row in rows]
        return as_array(padded, kind, f"{where}: {name}")

    arrays = {"drafted_tokens": table("drafted_tokens", np.int32, -1)}
    if told:
        layers = [table(name, np.float32, None) for name in CONFIDENCES]
        arrays["confidences"] = np.stack(layers, axis=-1)
    return arrays
