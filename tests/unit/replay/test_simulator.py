"""The reproduction of the public simulator, against the design's "Protocol facts" and its table."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspec.cost.builtin import SIMULATOR
from adaspec.errors import EvaluationError
from adaspec.evaluate.selection import Wanted, select
from adaspec.replay.contender import parse_contender
from adaspec.replay.simulator import Proposer, proposer_of, simulate
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.schema import Request

S = SIMULATOR
SHARED = Path(__file__).resolve().parents[4] / "shared"
DETERMINISTIC = [*(("eagle3", k) for k in (None, 1, 3, 9)), ("ngram", None), ("combined", None)]
SPECS = {"eagle3": "neural", "ngram": "ngram", "combined": "combine"}


def request(
    prompt: int, eagle: list[int], ngram: list[int], output: int = 9, workload: str = "cnn"
) -> Request:
    """A request by its recorded lists, which count the bonus token as the simulator's do."""
    return Request(
        workload=workload,
        id=f"{prompt}-{eagle}-{ngram}",
        prompt_tokens=np.zeros(prompt, np.int32),
        output_tokens=np.zeros(output, np.int32),
        neural_accepted=np.array(eagle, np.int16) - 1,
        ngram_accepted=np.array(ngram, np.int16) - 1,
    )


def drawn(seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)

    def counts() -> list[int]:
        found = rng.integers(1, 6, rng.integers(0, 12)).tolist()
        return [1, *found[1:]] if found else []

    return [request(int(rng.integers(1, 50)), counts(), counts()) for _ in range(3)]


def speed(
    one: Request, kind: str, fixed: int | None, copies: int, misses: list[bool] | None = None
) -> tuple[float, float] | None:
    """Tokens per second with and without speculation, written out; None where the list is empty.

    `misses` says of every draw whether a fixed n-gram draft finds no match where none is right.
    """
    eagle = [int(n) + 1 for n in one.neural_accepted]
    ngram = [int(n) + 1 for n in one.ngram_accepted]
    lists = {
        "eagle3": eagle,
        "ngram": ngram,
        "combined": [max(pair) for pair in zip(eagle, ngram, strict=False)],
    }
    emits = lists[kind]
    end = len(emits)
    if end == 0:
        return None
    prompt = len(one.prompt_tokens)
    prefill = S.fixed_s + S.per_token_s * copies * prompt + S.overhead_s
    plain = prefill
    for cur in range(1, end):
        plain += S.fixed_s + S.per_kv_s * copies * (prompt + cur)
        plain += S.per_token_s * copies + S.overhead_s
    current, latency = [1] * copies, [prefill] * copies
    draws = iter(misses or [])
    while running := [c for c in range(copies) if current[c] < end]:
        inputs, arrived = {}, {}
        for c in running:
            a = emits[current[c] - 1]
            length = a if fixed is None else fixed + 1
            if kind == "ngram" and fixed is not None and a == 1 and next(draws, False):
                length = 1
            inputs[c], arrived[c] = length, min(a, length)
        kv = sum(prompt + current[c] for c in running)
        verify = S.fixed_s + S.per_token_s * sum(inputs.values()) + S.per_kv_s * kv
        for c in running:
            if kind == "eagle3":
                draft = S.draft_fixed_s + S.draft_per_kv_s * kv + S.draft_per_token_s * inputs[c]
            elif kind == "ngram" and inputs[c] == 1:
                draft = 0.0
            else:
                draft = S.ngram_share_of_verify * verify
            latency[c] += verify + draft + S.overhead_s
            current[c] += arrived[c]
    mean = sum(latency) / copies
    return copies * end / mean, copies * end / plain


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(DETERMINISTIC),
    st.integers(1, 4),
)
def test_deterministic_rows_follow_from_the_protocol_facts(seed, kind, copies):
    name, fixed = kind
    requests = drawn(seed)
    spec = f"oracle:{SPECS[name]}" if fixed is None else f"fixed:{SPECS[name]}:{fixed}"
    expected = [s for one in requests if (s := speed(one, name, fixed, copies)) is not None]
    proposer = proposer_of(parse_contender(spec))
    if not expected:
        with pytest.raises(EvaluationError, match="no request of this workload"):
            simulate(requests, proposer, copies, seed)
        return
    cell = simulate(requests, proposer, copies, seed)
    assert cell.tokens_per_s == pytest.approx(np.mean([s for s, _ in expected]), rel=1e-12)
    assert cell.plain_tokens_per_s == pytest.approx(np.mean([p for _, p in expected]), rel=1e-12)


@pytest.mark.parametrize(("workload", "probability"), [("cnn", 0.4), ("instructcoder", 0.8)])
def test_fixed_ngram_misses_at_random_where_nothing_is_right(workload, probability):
    one = request(20, [1, 1], [1, *[1, 3, 1, 1, 2, 1, 4] * 3], workload=workload)
    rng = np.random.default_rng(0)
    drawn_speeds = [
        speed(one, "ngram", 3, 2, (rng.random(200) >= probability).tolist()) for _ in range(4000)
    ]
    expected = np.mean([found[0] for found in drawn_speeds if found is not None])
    proposer = proposer_of(parse_contender("fixed:ngram:3"))
    cells = [simulate([one], proposer, 2, seed) for seed in range(4000)]
    assert np.mean([cell.tokens_per_s for cell in cells]) == pytest.approx(expected, rel=2e-3)
    again = simulate([one], proposer, 2, 17)
    assert again == cells[17]
    assert len({cell.tokens_per_s for cell in cells}) > 10


def test_what_the_simulator_never_knew_is_refused():
    with pytest.raises(EvaluationError, match="no match probability for workload 'mine'"):
        simulate([request(3, [1, 2], [1, 2], workload="mine")], Proposer(1, 3), 1, 0)
    bare = replace(request(3, [1, 2], [1, 2]), ngram_accepted=None)
    with pytest.raises(EvaluationError, match="lacks a recorded list"):
        simulate([bare], proposer_of(parse_contender("oracle:combine")), 1, 0)
    simulate([bare], proposer_of(parse_contender("oracle:neural")), 1, 0)
    with pytest.raises(EvaluationError, match="leave MIN out"):
        proposer_of(parse_contender("fixed:ngram:3:2"))
    for spec in ("none", "hybrid", "budget:3", "oracle:plan", "fixed:ngram-vllm:3"):
        with pytest.raises(EvaluationError, match=f"cannot run '{spec}'"):
            proposer_of(parse_contender(spec))


def test_the_published_table_is_reproduced(tmp_path):
    table = SHARED / "reference" / "specdecode-bench-devsplit.csv"
    recordings = SHARED / "traces" / "specdecode-bench"
    if not (table.is_file() and recordings.is_dir()):
        pytest.skip(f"needs {table} and the public recordings in {recordings}")
    import_trace("specdecode-bench", [recordings], tmp_path / "trace")
    selection = select([tmp_path / "trace"], Wanted(filtered=False))
    workloads: dict[str, list[Request]] = {}
    for one in selection.requests:
        workloads.setdefault(one.workload, []).append(one)
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 144
    misses = []
    for row in rows:
        kind, method = SPECS[row["proposer"]], row["predict_method"]
        spec = f"oracle:{kind}" if method == "ORACLE" else f"fixed:{kind}:{method[6:]}"
        proposer = proposer_of(parse_contender(spec))
        cell = simulate(workloads[row["workload"]], proposer, int(row["batch_size"]), 0)
        found, wanted = cell.tokens_per_s / cell.plain_tokens_per_s, float(row["speedup"])
        random = kind == "ngram" and method != "ORACLE"
        if abs(found - wanted) > (0.03 * wanted if random else 0.011):
            misses.append((row, found))
    assert not misses
