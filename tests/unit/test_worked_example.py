"""Every number of the worked example in docs/how-it-decides.md, computed by the planner itself."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.cost.model import Deciding, StepShape, forward_s, paid_forwards, token_s
from adaspec.policy.planner.curves import weigh_splice
from adaspec.policy.planner.forwards import (
    BatchState,
    batch_state,
    best_forwards,
    best_neural,
    wants_forward,
    weigh_ngram,
)
from adaspec.policy.planner.lengths import choose_lengths
from adaspec.policy.planner.memory import KNOBS, Memory, knob_row, new_memory
from adaspec.predict.evidence_factors import no_factors
from adaspec.predict.features import CANDIDATE, TAIL, RowFacts
from adaspec.predict.model import HEADS, Model, no_curves
from adaspec.predict.tables import packed
from adaspec.train.heads import constant_heads

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-it-decides.md"
HEADING = "## A worked example"

A, B, C = range(3)
CAP, NEURAL_CAP = 48, 5
CONTEXT, TOKENS, SECONDS, BUSY_RATE = 2000, 7164, 8.3273, 10_000
NGRAM = {A: [0.90, 0.86, 0.82, 0.79, 0.76, 0.73, 0.70, 0.68], B: [0.30, 0.12, 0.05, 0.02]}
NEURAL = {
    A: [0.80, 0.60, 0.45, 0.33, 0.24],
    B: [0.75, 0.52, 0.36, 0.25, 0.17],
    C: [0.55, 0.28, 0.14, 0.07, 0.03],
}
SEEN_NGRAM, SEEN_NEURAL = {A: 0.97, B: 0.05}, {A: 0.92, B: 0.93, C: 0.20}
"""First values of the curves once the first drafted tokens were seen."""
SPLICE = [0.80, 0.60, 0.45]
"""What could be copied behind two neural tokens of B."""

MODEL = H100_LLAMA_3_1_8B.charged_to(Deciding.REVISION)
COST = MODEL.constants()
ROWS = RowFacts(
    slots=np.arange(3, dtype=np.int32),
    prompt_tokens=np.array([900, 500, 200], np.int32),
    position=np.array([200, 100, 100], np.int32),
    holds_neural=np.ones(3, np.bool_),
    length=np.array([12, 2, 0], np.int32),
    start=np.zeros(3, np.int32),
    agree=np.ones(3, np.int32),
    seen=np.ones(3, np.int32),
    available=np.array([8, 4, 0], np.int32),
    tail=np.full((3, TAIL), -1, np.int32),
    candidate=np.full((3, CANDIDATE), -1, np.int32),
)


def fresh_memory() -> Memory:
    """The planner's memory with the example's rate, of a model that is never asked."""
    nothing = {group: constant_heads(group, 0.5) for group in HEADS}
    few = np.empty(0, np.float32)
    tables = packed(np.empty(0, np.uint64), few, few, few, (0, 0, 0, 0), 1)
    curves = {name: no_curves(1) for name in ("ngram", "neural", "splice")}
    memory = new_memory([Model(nothing, curves, tables)], 3)
    memory.throughput[0] = (TOKENS, SECONDS, 1000)
    return memory


def fill(memory: Memory, ngram: dict[int, list[float]], neural: dict[int, list[float]]) -> None:
    """Give every request its curves."""
    for curves, given in ((memory.ngram, ngram), (memory.neural, neural)):
        curves[:] = 0.0
        curves[:, 0] = 1.0
        for row, values in given.items():
            curves[row, 1 : len(values) + 1] = values


def rescaled(curves: dict[int, list[float]], first: dict[int, float]) -> dict[int, list[float]]:
    """The curves with other first values, all that lies behind in proportion."""
    return {row: [s * first[row] / values[0] for s in values] for row, values in curves.items()}


def state_of(memory: Memory, *, reads_drafts: bool) -> BatchState:
    """The example's batch as plans are made for it."""
    state: BatchState = batch_state(
        memory, ROWS, knob_row({}), COST, no_factors(), CAP, NEURAL_CAP, reads_drafts
    )
    return state


def prices(memory: Memory) -> tuple[float, float, float]:
    """The rate, what a token costs at it, and a forward's seconds."""
    state = state_of(memory, reads_drafts=False)
    return state.rate, state.price, forward_s(COST, len(ROWS.slots), CONTEXT)


def chosen(memory: Memory, forwards: int) -> tuple[list[int], list[int]]:
    """Neural and copied tokens per request."""
    neural_len, ngram_len = np.zeros(3, np.int32), np.zeros(3, np.int32)
    choose_lengths(state_of(memory, reads_drafts=True), forwards, neural_len, ngram_len)
    return neural_len.tolist(), ngram_len.tolist()


def drafted_by(forwards: int) -> float:
    """Expected accepted tokens of A's copy and of B's and C's neural drafts."""
    return sum(NGRAM[A]) + sum(NEURAL[B][:forwards]) + sum(NEURAL[C][:forwards])


PLANS = {
    "nothing, and nobody holds the drafter": (0.0, 0, 0, False),
    "nothing": (0.0, 0, 0, True),
    "3 neural tokens for everyone": (sum(sum(curve[:3]) for curve in NEURAL.values()), 9, 3, True),
    "as chosen, but one forward": (drafted_by(1), 10, 1, True),
    "as chosen: two forwards": (drafted_by(2), 12, 2, True),
}
"""Expected accepted tokens, drafted tokens, forwards, and whether the drafter is held."""


def step_of(plan: tuple[float, int, int, bool]) -> tuple[float, float]:
    """Expected emitted tokens and seconds of a step."""
    accepted, drafted, forwards, held = plan
    return 3 + accepted, MODEL.step_s(StepShape(3, CONTEXT, drafted, 0, 0, forwards, held))


def weighed(memory: Memory, forwards: int) -> tuple[list[str], float, float]:
    """What the page says of each request's best plan; their summed worth; what forwards cost."""
    rate, price, forward = prices(memory)
    weigh_ngram(memory, ROWS, price, CAP)
    cells, worth = [], 0.0
    for row in range(3):
        length, value = best_neural(memory, row, forwards, price, CAP)
        kind = "neural"
        if memory.ngram_value[row] >= value:
            kind, length, value = "n-gram", memory.ngram_len[row], memory.ngram_value[row]
        cells.append(f"{kind} {length}: {value:.3f}" if length else "0")
        worth += value
    return cells, worth, rate * forward * paid_forwards(forwards, True)


def before_drafting() -> Memory:
    memory = fresh_memory()
    fill(memory, NGRAM, NEURAL)
    return memory


def once_seen(*, spliced: bool) -> Memory:
    """The same when one forward has shown its tokens; `spliced`: and the second B's match."""
    memory = fresh_memory()
    fill(memory, rescaled(NGRAM, SEEN_NGRAM), rescaled(NEURAL, SEEN_NEURAL))
    if spliced:
        memory.splice[B, 2, 1 : len(SPLICE) + 1] = SPLICE
        weigh_splice(memory, B, 2, prices(memory)[1])
    return memory


def goes_on_after(memory: Memory, count: int) -> bool:
    return bool(wants_forward(state_of(memory, reads_drafts=True), count))


def test_two_forwards_are_planned_and_no_plan_is_worth_more() -> None:
    memory = before_drafting()
    rate, _, _ = prices(memory)
    found = best_forwards(state_of(memory, reads_drafts=False))
    assert found == 2
    assert chosen(memory, found) == ([0, 2, 2], [8, 0, 0])
    best = -np.inf
    for forwards in range(NEURAL_CAP + 1):
        drafts = [
            [NGRAM.get(row, [])[:k] for k in range(9)]
            + [NEURAL[row][:k] for k in range(forwards + 1)]
            for row in range(3)
        ]
        for plan in itertools.product(*drafts):
            accepted, drafted = sum(map(sum, plan)), sum(map(len, plan))
            emitted, seconds = step_of((accepted, drafted, forwards, True))
            best = max(best, emitted - rate * seconds)
    emitted, seconds = step_of(PLANS["as chosen: two forwards"])
    assert emitted - rate * seconds == pytest.approx(best)
    differences = [worth - paid for _, worth, paid in (weighed(memory, f) for f in range(2, 6))]
    assert differences == sorted(differences, reverse=True)


def test_drafting_ends_after_two_forwards_and_each_request_chooses_again() -> None:
    assert goes_on_after(once_seen(spliced=False), 1)
    memory = once_seen(spliced=True)
    assert not goes_on_after(memory, 2)
    assert chosen(memory, 2) == ([0, 2, 2], [8, 3, 0])


def test_at_a_busy_servers_rate_one_request_verifies_nothing() -> None:
    memory = once_seen(spliced=True)
    memory.throughput["tokens"], memory.throughput["seconds"] = BUSY_RATE * 1e6, 1e6
    assert chosen(memory, 2) == ([0, 2, 0], [8, 3, 0])


def rows_of_the_page() -> list[list[str]]:
    """Every table row of the example but the headings."""
    rows = []
    for row, name in ((A, "A"), (B, "B"), (C, "C")):
        curves = [
            ", ".join(f"{s:.2f}" for s in given) for given in (NGRAM.get(row, []), NEURAL[row])
        ]
        rows.append([name, curves[0] or "no match", curves[1]])
    memory = before_drafting()
    rate, _, _ = prices(memory)
    for forwards in range(4):
        cells, worth, paid = weighed(memory, forwards)
        rows.append([str(forwards), *cells, *(f"{v:.3f}" for v in (worth, paid, worth - paid))])
    for name, plan in PLANS.items():
        emitted, seconds = step_of(plan)
        numbers = [f"{emitted:.2f}", f"{1e3 * seconds:.3f} ms"]
        numbers += [f"{emitted / seconds:,.0f}", f"{emitted - rate * seconds:.2f}"]
        rows.append([name, str(3 + plan[1]), *numbers])
    return rows


def statements_of_the_page() -> list[str]:
    """Everything with a number in it that the example's sentences say."""
    memory = before_drafting()
    rate, price, forward = prices(memory)
    imagined, speedup = KNOBS["prior_steps"], KNOBS["prior_speedup"]
    imagined_s = imagined * MODEL.step_s(StepShape(3, CONTEXT))
    gain, gain_s = NEURAL[B][1] + NEURAL[C][1], forward + 2 * token_s(COST)
    emitted, seconds = step_of(PLANS["as chosen: two forwards"])
    own = emitted / seconds
    ngram, neural = rescaled(NGRAM, SEEN_NGRAM), rescaled(NEURAL, SEEN_NEURAL)
    b, c = neural[B], neural[C]
    spliced = b[1] * sum(SPLICE)
    parts = [sum(ngram[A]), b[0] + b[1] + spliced, c[0] + c[1]]
    final, final_s = step_of((sum(parts), 8 + 5 + 2, 2, True))
    return [
        f"{CONTEXT:,} known tokens",
        f"last {KNOBS['pace_steps']:,.0f} steps emitted {TOKENS:,} tokens in {SECONDS} s",
        f"add {imagined * speedup * 3:.0f} tokens",
        f"in {imagined_s:.4f} s",
        f"$r = {TOKENS + imagined * speedup * 3:,.0f} / {SECONDS + imagined_s:.4f} = {rate:.1f}$",
        f"takes {1e3 * token_s(COST):.5f} ms",
        f"$c = {price:.4f}$",
        f"takes {1e3 * forward:.4f} ms",
        rf"$\varphi = {rate * forward:.4f}$",
        f"{gain:.2f} expected tokens for {1e3 * gain_s:.3f} ms",
        f"{gain / gain_s:,.0f} tokens per second",
        f"average of {rate:.0f}",
        f"{own:,.0f}, a forward would cost {own * forward:.3f}",
        f"becomes {neural[A][0]:.2f}, {b[0]:.2f} and {c[0]:.2f}",
        f"becomes {ngram[A][0]:.2f} for A and {ngram[B][0]:.2f} for B",
        f"${b[1]:.3f} + {c[1]:.3f} - 2c = {b[1] + c[1] - 2 * price:.3f}$",
        f"${b[2]:.3f} + {c[2]:.3f} - 2c = {b[2] + c[2] - 2 * price:.3f}$",
        ", ".join(f"{s:.2f}" for s in SPLICE),
        f"${b[1]:.3f} \\cdot ({' + '.join(f'{s:.2f}' for s in SPLICE)}) = {spliced:.3f}$",
        f"${spliced:.3f} - 3c = {spliced - 3 * price:.3f}$",
        f"$3 + {' + '.join(f'{part:.3f}' for part in parts)} = {final:.3f}$",
        f"{1e3 * final_s:.3f} ms",
        f"{final / final_s:,.0f} expected tokens per second",
        f"{BUSY_RATE:,} tokens per second",
        f"$c = {BUSY_RATE * token_s(COST):.3f}$",
        f"C, at {c[0]:.2f},",
    ]


@pytest.fixture(scope="module")
def section() -> str:
    if not PAGE.exists():
        pytest.skip("docs/ is not here: a source distribution leaves it out")
    text = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    return text.replace("{,}", ",")


def test_every_table_row_of_the_page_is_computed(section: str) -> None:
    lines = [line for line in section.splitlines() if re.match(r"\| .*\d", line)]
    found = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    headings = [row for row in found if "$" in "".join(row)]
    assert [row for row in found if row not in headings] == rows_of_the_page()


def test_every_number_in_the_pages_sentences_is_computed(section: str) -> None:
    lines = [line for line in section.splitlines() if not line.startswith("|")]
    rest = re.sub(r"\s+", " ", " ".join(lines))
    missing = [said for said in statements_of_the_page() if said not in rest]
    assert missing == []
    for said in sorted(statements_of_the_page(), key=len, reverse=True):
        rest = rest.replace(said, "")
    # What is left may count or number things (S(2), 3 requests), and name code.
    rest = re.sub(r"`[^`]*`", "", rest)
    assert re.findall(r"\d+[.,]\d+|\d\d+", rest) == []
