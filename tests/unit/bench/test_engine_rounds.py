"""Rounds: run in turns, kept on disk, found again by what lies behind their names."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_rounds import PROMPTS, entry

from adaspec.bench.engine import rounds
from adaspec.bench.engine.client import Call
from adaspec.bench.engine.methods import NONE, BenchmarkOptions, Candidate
from adaspec.bench.engine.prompts import deal
from adaspec.bench.engine.rounds import Load, RoundsFile, Runner, fingerprint
from adaspec.errors import BenchError
from adaspec.evaluate.options import ALL

STORED = (
    '{"schema": 1, "task": {"seed": 0}}\n'
    '{"concurrency": 1, "round": 0, "workload": "all", "entrant": "none", "drafted": 6.0, '
    '"accepted": 4.0, "pace_s": null, "answers": [{"workload": "w", "id": "0", "sent_s": 0, '
    '"arrived_s": [1, 2], "counts": [1, 1], "tokens": [0, 1]}]}\n'
)
"""What version 0.1 wrote."""


def test_rounds_that_an_earlier_version_stored_are_read_and_written_alike(tmp_path):
    (tmp_path / "old.jsonl").write_text(STORED)
    assert list(RoundsFile(tmp_path / "old.jsonl", {"seed": 0})) == [entry()]
    RoundsFile(tmp_path / "new.jsonl", {"seed": 0}).add(entry())
    assert (tmp_path / "new.jsonl").read_text() == STORED


def test_a_killed_benchmark_finds_its_rounds_again(tmp_path):
    path = tmp_path / "rounds.jsonl"
    RoundsFile(path, {"seed": 0}).add(entry())
    again = RoundsFile(path, {"seed": 0})
    assert entry().key in again
    assert entry(turn=1).key not in again
    assert list(again) == [entry()]
    assert path.stat().st_mode & 0o777 == 0o600


def test_more_rounds_go_on_where_fewer_ended(tmp_path):
    fewer, more = (deal(PROMPTS, ["a", "b"], rounds, 10, 1, 0)[0] for rounds in (1, 3))
    assert {key: more[key] for key in fewer} == fewer
    file = RoundsFile(tmp_path / "rounds.jsonl", {"seed": 0})
    for turn in range(3):
        file.add(entry(turn))
    assert file.first(1) == [entry(0)]
    assert file.first(3) == list(file)


def test_a_torn_last_line_is_measured_again_and_nothing_else(tmp_path):
    path = tmp_path / "rounds.jsonl"
    file = RoundsFile(path, {"seed": 0})
    file.add(entry(0))
    file.add(entry(1))
    path.write_bytes(path.read_bytes()[:-30])
    again = RoundsFile(path, {"seed": 0})
    assert list(again) == [entry(0)]
    again.add(entry(1))
    assert list(RoundsFile(path, {"seed": 0})) == [entry(0), entry(1)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_another_benchmarks_rounds_are_refused_with_what_differs(tmp_path):
    path = tmp_path / "rounds.jsonl"
    RoundsFile(path, {"seed": 0, "model": "M"}).add(entry())
    with pytest.raises(BenchError, match="other seed"):
        RoundsFile(path, {"seed": 1, "model": "M"})


def test_a_damaged_ledger_is_said_to_be_so(tmp_path):
    path = tmp_path / "rounds.jsonl"
    RoundsFile(path, {"seed": 0})
    with path.open("a") as file:
        file.write('{"concurrency": 1}\n')
    with pytest.raises(BenchError, match="damaged"):
        RoundsFile(path, {"seed": 0})


CALLS = {"talk": [Call("talk", "1", (1, 2), 8)]}


CANDIDATES_BY_LOAD = {1: [Candidate(NONE, "", None)]}


@pytest.fixture
def options(tmp_path):
    for folder in ("policy", "head"):
        (tmp_path / folder).mkdir()
    (tmp_path / "policy" / "SHA256SUMS").write_text("aa  networks.npz\n")
    (tmp_path / "head" / "config.json").write_text("{}")
    (tmp_path / "head" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "cost.json").write_text("{}")
    return BenchmarkOptions(
        "org/target",
        (),
        Path("out"),
        draft=str(tmp_path / "head"),
        cost=str(tmp_path / "cost.json"),
        policies=(str(tmp_path / "policy"), "hybrid-splice"),
    )


def of(options, vllm="0.32"):
    return fingerprint(options, CALLS, CANDIDATES_BY_LOAD, vllm)


def test_the_same_again_is_the_same(options):
    assert of(options) == of(options)
    # Neither how often nor how near is part of what was measured.
    assert of(replace(options, rounds=9, near_tie=0.5)) == of(options)


@pytest.mark.parametrize(
    ("file", "differs"),
    [
        ("policy/SHA256SUMS", "policies"),
        ("head/model.safetensors", "head"),
        ("head/config.json", "head"),
        ("cost.json", "costs"),
    ],
)
def test_what_was_made_anew_under_its_old_name_is_another(options, tmp_path, file, differs):
    before = of(options)
    RoundsFile(tmp_path / "rounds.jsonl", before)
    (tmp_path / file).write_text("made anew")
    after = of(options)
    assert [name for name in before if before[name] != after[name]] == [differs]
    with pytest.raises(BenchError, match=f"holds another benchmark \\(other {differs}\\)"):
        RoundsFile(tmp_path / "rounds.jsonl", after)


def test_a_fingerprint_has_the_names_that_stored_benchmarks_have(options):
    assert " ".join(of(options)) == (
        "model drafter prompts entrants policies head costs requests max_tokens seed workloads "
        "engine vllm"
    )


def test_another_vllm_is_another(options):
    assert of(options)["vllm"] != of(options, "0.33")["vllm"]


def test_hub_ids_and_builtin_costs_are_their_names(options):
    named = replace(
        options, draft="org/head", cost="h100-llama-3.1-8b", policies=("hybrid:4:16:3",)
    )
    found = of(named)
    assert found["head"] is found["costs"] is None
    assert found["policies"] == [None]
    assert found["drafter"] == "org/head"


CELLS = [ALL, "code", "talk"]


CANDIDATES = [
    Candidate(NONE, "", None),
    Candidate("ngram", "3:2:5", {}),
    Candidate("ngram", "3:5:10", {}, runner_up=True),
]


class FakeServers:
    """Stands in for `Servers`: every server is there at once."""

    def __init__(self, short_of_memory=False, broken=()):
        self.short_of_memory, self.broken, self.asked_for, self.gone = (
            short_of_memory,
            broken,
            [],
            [],
        )

    def running(self, candidate):
        self.asked_for.append(candidate.name)
        if candidate.name in self.broken:
            raise BenchError(f"{candidate.name} does not start")
        return SimpleNamespace(address=candidate.name, warm=False, pause=lambda: None)

    def end(self, candidate):
        self.gone.append(candidate.name)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        rounds.client, "counters", lambda address: {"drafted": 1.0, "accepted": 1.0}
    )
    monkeypatch.setattr(rounds, "send_all", lambda calls, load, stream: [])
    monkeypatch.setattr(rounds, "memory_read_s", lambda: 1.0)
    dealt = {(turn, cell): [Call(cell, "1", (1,), 4)] for turn in range(2) for cell in CELLS}

    def begin(servers):
        options = BenchmarkOptions("M", (), Path("out"), rounds=2)
        file = RoundsFile(tmp_path / "rounds.jsonl", {})
        absent, told = {}, []
        Runner(
            options=options,
            load=Load(4, CANDIDATES, CELLS, dealt, repeated=False),
            servers=servers,
            file=file,
            absent=absent,
            report=lambda what, done, total: told.append((done, total)),
        ).run()
        return [(e.number, e.cell, e.candidate) for e in file], absent, told

    return begin


def test_methods_take_turns_within_every_cell(run):
    entries, _, told = run(FakeServers())
    # The runner-up runs on the mix alone.
    assert [cell for _, cell, _ in entries] == ([ALL] * 3 + ["code"] * 2 + ["talk"] * 2) * 2
    assert [turn for turn, _, _ in entries] == [0] * 7 + [1] * 7
    assert len(set(entries)) == 14
    assert told[0] == (0, 18) and told[-1] == (18, 18)


def test_where_a_visit_is_a_start_it_takes_in_all_cells(run):
    servers = FakeServers(short_of_memory=True)
    entries, _, _ = run(servers)
    assert len(set(entries)) == 14
    assert len(servers.asked_for) == 2 * len(CANDIDATES)
    for candidate in CANDIDATES[:2]:
        assert [c for turn, c, name in entries if name == candidate.name and not turn] == CELLS


def test_rounds_that_are_there_are_not_run_again(run):
    before, _, _ = run(FakeServers())
    servers = FakeServers()
    again, _, _ = run(servers)
    assert again == before
    assert servers.asked_for == []


def test_a_method_that_fails_is_out_and_the_others_go_on(run):
    servers = FakeServers(broken=["ngram 3:2:5"])
    entries, absent, _ = run(servers)
    assert absent == {"ngram 3:2:5": "ngram 3:2:5 does not start"}
    assert servers.gone == ["ngram 3:2:5"]
    assert {name for _, _, name in entries} == {CANDIDATES[0].name, CANDIDATES[2].name}
    assert servers.asked_for.count("ngram 3:2:5") == 1


def test_without_no_speculation_there_is_nothing_to_compare(run):
    with pytest.raises(BenchError, match="none does not start"):
        run(FakeServers(broken=[NONE]))
