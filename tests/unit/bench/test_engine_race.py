from pathlib import Path
from types import SimpleNamespace

import pytest

from adaspec.bench.engine import race
from adaspec.bench.engine.entrants import NONE, Entrant
from adaspec.bench.engine.ledger import Ledger
from adaspec.bench.engine.race import Race
from adaspec.bench.engine.task import Task
from adaspec.bench.engine.traffic import Call
from adaspec.bench.lookup import BenchError
from adaspec.evaluate.closed_loop import ALL

CELLS = [ALL, "code", "talk"]
LINEUP = [
    Entrant(NONE, "", None),
    Entrant("ngram", "3:2:5", {}),
    Entrant("ngram", "3:5:10", {}, runner_up=True),
]


class Yard:
    """Stands in for the stable: every server is there at once."""

    def __init__(self, crowded=False, broken=()):
        self.crowded, self.broken, self.led_out, self.gone = crowded, broken, [], []

    def lead_out(self, entrant):
        self.led_out.append(entrant.name)
        if entrant.name in self.broken:
            raise BenchError(f"{entrant.name} does not start")
        return SimpleNamespace(address=entrant.name, warm=False, pause=lambda: None)

    def dismiss(self, entrant):
        self.gone.append(entrant.name)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(race.client, "counters", lambda address: {"drafted": 1.0, "accepted": 1.0})
    monkeypatch.setattr(race, "drive", lambda calls, load, stream: [])
    dealt = {(turn, cell): [Call(cell, "1", (1,), 4)] for turn in range(2) for cell in CELLS}

    def begin(yard):
        task = Task("M", (), Path("out"), rounds=2)
        ledger = Ledger(tmp_path / "rounds.jsonl", {})
        absent, told = {}, []
        Race(
            task=task,
            load=4,
            lineup=LINEUP,
            cells=CELLS,
            dealt=dealt,
            stable=yard,
            ledger=ledger,
            absent=absent,
            report=lambda what, done, total: told.append((done, total)),
            pace=SimpleNamespace(seconds=lambda: 1.0),
        ).run()
        return [(e.round, e.workload, e.entrant) for e in ledger], absent, told

    return begin


def test_methods_take_turns_within_every_cell(run):
    entries, _, told = run(Yard())
    # The runner-up runs on the mix alone.
    assert [cell for _, cell, _ in entries] == ([ALL] * 3 + ["code"] * 2 + ["talk"] * 2) * 2
    assert [turn for turn, _, _ in entries] == [0] * 7 + [1] * 7
    assert len(set(entries)) == 14
    assert told[0] == (0, 18) and told[-1] == (18, 18)


def test_where_a_visit_is_a_start_it_takes_in_all_cells(run):
    yard = Yard(crowded=True)
    entries, _, _ = run(yard)
    assert len(set(entries)) == 14
    assert len(yard.led_out) == 2 * len(LINEUP)
    for entrant in LINEUP[:2]:
        assert [c for turn, c, name in entries if name == entrant.name and not turn] == CELLS


def test_rounds_that_are_there_are_not_run_again(run):
    before, _, _ = run(Yard())
    yard = Yard()
    again, _, _ = run(yard)
    assert again == before
    assert yard.led_out == []


def test_a_method_that_fails_is_out_and_the_others_go_on(run):
    yard = Yard(broken=["ngram 3:2:5"])
    entries, absent, _ = run(yard)
    assert absent == {"ngram 3:2:5": "ngram 3:2:5 does not start"}
    assert yard.gone == ["ngram 3:2:5"]
    assert {name for _, _, name in entries} == {LINEUP[0].name, LINEUP[2].name}
    assert yard.led_out.count("ngram 3:2:5") == 1


def test_without_no_speculation_there_is_nothing_to_compare(run):
    with pytest.raises(BenchError, match="none does not start"):
        run(Yard(broken=[NONE]))
