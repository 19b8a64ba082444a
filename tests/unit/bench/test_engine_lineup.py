"""Who takes part at which setting, and servers that wait their turn."""

import importlib.util
import signal

import numpy as np
import pytest

from adaspec.bench.engine import entrants, server, settings
from adaspec.bench.engine.entrants import Drafter, Entrant, entrant_of, missing
from adaspec.bench.engine.lineup import line_up
from adaspec.bench.engine.server import Stable, flags
from adaspec.bench.engine.settings import Settings, rank_settings, shortened
from adaspec.bench.engine.traffic import Call
from adaspec.bench.lookup import BenchError
from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.replay.contender import parse_contender
from adaspec.trace.synthetic import synthesize, write_synthetic

HEAD = Drafter("H", "eagle3")


def test_stock_methods_get_vllms_own_words():
    assert entrant_of("none", "none", None).config is None
    assert entrant_of("ngram", "fixed:ngram-vllm:6:2:5", None).config == {
        "method": "ngram",
        "num_speculative_tokens": 6,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    assert entrant_of("neural", "fixed:neural:4", HEAD).config == {
        "method": "eagle3",
        "model": "H",
        "num_speculative_tokens": 4,
    }
    table = entrant_of("batch-table", "batch-table:1-3=4,4-=0", HEAD).config
    assert table["num_speculative_tokens"] == 4
    first, last = table["num_speculative_tokens_per_batch_size"]
    assert first == [1, 3, 4]
    assert (last[0], last[2]) == (4, 0)
    assert last[1] > 1000


def test_adaspecs_entrants_serve_by_the_plug_in():
    found = entrant_of("hybrid-splice", "hybrid-splice:4:20:2:2:5", HEAD)
    assert found.config == {
        "method": "adaspec",
        "model": "H",
        "policy": "hybrid-splice:4:20:2:2:5",
    }
    ours = entrants.adaspec_entrant(None, HEAD, "cost.json")
    assert ours.config == {"method": "adaspec", "model": "H", "cost": "cost.json"}


def test_adaspec_is_told_what_the_drafter_is_where_the_user_had_to_say():
    head = Drafter("H", "eagle", asked="eagle")
    for entrant in (
        entrant_of("hybrid-splice", "hybrid-splice", head),
        entrants.adaspec_entrant(None, head, None),
    ):
        assert entrant.config["draft_method"] == "eagle"
        assert entrant.config["model"] == "H"
    assert entrant_of("neural", "fixed:neural:3", head).config["method"] == "eagle"
    assert "draft_method" not in entrants.adaspec_entrant(None, HEAD, None).config


def test_what_cannot_run_here_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = missing(entrants.METHODS, None)
    assert "arctic-inference" in found["suffix"]
    assert "--draft" in found["neural"]
    assert set(found) == {"suffix", "neural", "batch-table", "hybrid-splice"}


def test_a_method_that_needs_a_head_is_refused_without_one():
    with pytest.raises(BenchError, match="name one by --draft"):
        entrant_of("neural", "fixed:neural:3", None)


def test_no_speculation_always_runs_and_what_is_absent_does_not():
    lineup = line_up(
        ("adaspec", "neural", "suffix"), {"suffix": "x"}, Settings(), 4, HEAD, ["p"], None
    )
    assert [each.method for each in lineup] == ["none", "adaspec", "neural"]


def test_suffix_runs_at_its_defaults_and_at_one_other():
    lineup = line_up(("suffix",), {}, Settings(), 4, None, [None], None)
    assert [each.runner_up for each in lineup if each.method == "suffix"] == [False, True]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces") / "made"
    write_synthetic(folder, 0, requests_per_workload=4)
    whole = settings.grid_of
    with pytest.MonkeyPatch.context() as patch:
        # Thousands of settings take half a minute, and a few dozen are ranked as well.
        patch.setattr(settings, "grid_of", lambda player: _thinned(whole(player)))
        return rank_settings(
            [folder], frozenset(), H100_LLAMA_3_1_8B, (1, 4), 64, 0, lambda *_: None
        )


def _thinned(grid):
    return [
        setting
        for at, setting in enumerate(grid)
        if at % 200 == 0 or setting.spec == "none" or setting.spec.startswith("fixed:neural")
    ]


def test_settings_are_ranked_by_what_the_evaluator_expects(ranked):
    for method in ("ngram", "neural", "hybrid-splice"):
        for load in (1, 4):
            best, second = (
                ranked.expected(spec, "all", load) for spec in ranked.ranked(method, load)
            )
            assert best >= second > 0
    assert ranked.expected("none", "all", 1) == 1.0


def test_every_setting_becomes_an_entrant_with_a_runner_up(ranked):
    lineup = line_up(entrants.METHODS, {}, ranked, 4, HEAD, [None], None)
    assert len({each.name for each in lineup}) == len(lineup)
    second = [each.method for each in lineup if each.runner_up]
    assert sorted(second) == ["hybrid-splice", "neural", "ngram", "suffix"]


def test_what_a_trace_does_not_hold_is_not_expected(ranked):
    assert ranked.expected(None, "all", 1) is None
    assert ranked.expected("fixed:neural:3", "no such workload", 1) is None
    assert ranked.expected("policies/nowhere", "all", 1) is None


def test_what_is_expected_of_a_round_is_what_its_very_requests_would_do(ranked):
    tape = ranked.player.tape
    by_place = {at: prompt for prompt, at in ranked.prompts.items()}
    order = np.array([3, 0, 2, 1, 5, 4], np.int32)
    calls = [Call("any", str(at), by_place[at], 64) for at in order.tolist()]
    player = ranked.player
    speeds = [
        player.play(parse_contender(spec), order, 4).tokens_per_s
        for spec in ("fixed:neural:3", "none")
    ]
    found = ranked.expected("fixed:neural:3", "all", 4, [calls])
    assert found == pytest.approx(speeds[0] / speeds[1])
    assert max(tape.columns.length) <= 64
    # Tokens over seconds of all rounds, as they are measured.
    rounds = [calls[:4], calls]
    runs = [
        [player.play(parse_contender(spec), places, 4) for places in (order[:4], order)]
        for spec in ("fixed:neural:3", "none")
    ]
    mine, none = (sum(r.tokens for r in each) / sum(r.time_s for r in each) for each in runs)
    assert ranked.expected("fixed:neural:3", "all", 4, rounds) == pytest.approx(mine / none)
    stranger = Call("any", "x", (1, 2, 3), 64)
    drawn = ranked.expected("fixed:neural:3", "all", 4)
    assert ranked.expected("fixed:neural:3", "all", 4, [[*calls, stranger]]) == drawn != found


def test_a_shortened_request_is_the_same_up_to_there():
    request = next(iter(synthesize(0, requests_per_workload=1)))
    short = shortened(request, 7)
    assert len(short.output_tokens) == len(short.neural_accepted) == 7
    assert len(short.drafted_tokens) == len(short.confidences) == 7
    assert short.paired
    assert shortened(request, 10_000).output_tokens.tolist() == request.output_tokens.tolist()


def test_engine_arguments_become_flags():
    found = flags({"max_model_len": 384, "enforce_eager": True, "dtype": "float32", "x_y": False})
    assert found == ["--max-model-len", "384", "--enforce-eager", "--dtype", "float32", "--no-x-y"]


class Horse:
    """Stands in for a server."""

    def __init__(self, entrant, log):
        self.entrant, self.log = entrant, log
        log.append(("start", entrant.name))

    def wait(self):
        pass

    def held_bytes(self):
        return 1.0

    def __getattr__(self, name):
        return lambda: self.log.append((name, self.entrant.name))


def entrant(name):
    return Entrant("neural", name, {})


def test_one_server_runs_and_the_others_are_stopped_in_their_tracks():
    log = []
    with Stable(lambda each: Horse(each, log)) as stable:
        stable.lead_out(entrant("a"))
        stable.lead_out(entrant("b"))
        log.clear()
        stable.lead_out(entrant("a"))
        assert ("pause", "neural b") in log
        assert ("resume", "neural a") in log
        assert not [each for each in log if each[0] == "start"]
    assert {name for what, name in log if what == "stop"} == {"neural a", "neural b"}


def test_where_memory_is_short_the_one_that_waited_longest_goes(monkeypatch):
    log, free = [], [1e12]
    monkeypatch.setattr(server, "free_memory", lambda: free[0])
    with Stable(lambda each: Horse(each, log)) as stable:
        for name in ("a", "b"):
            stable.lead_out(entrant(name))
        free[0] = 0.0
        stable.lead_out(entrant("c"))
        assert [name for what, name in log if what == "stop"] == ["neural a", "neural b"]


def test_a_server_that_does_not_start_says_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    found = server.Server("M", entrant("a"), {}, tmp_path / "log")
    (tmp_path / "log").write_text("INFO hello\nValueError: no such head\n")
    with pytest.raises(BenchError, match="neural a: ValueError: no such head"):
        found.wait()
    found.stop()


def test_whoever_waits_for_a_server_hears_for_how_long(tmp_path, monkeypatch):
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    monkeypatch.setattr(server.time, "sleep", lambda seconds: None)
    heard = []
    found = server.Server("M", entrant("a"), {}, tmp_path / "log")
    found.stop()
    monkeypatch.setattr(found._process, "poll", lambda: None if len(heard) < 2 else 1)
    with pytest.raises(BenchError):
        found.wait(heard.append)
    assert len(heard) == 2
    assert 0 <= heard[0] <= heard[1]


def test_a_server_that_only_takes_too_long_is_not_said_to_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    monkeypatch.setattr(server, "PATIENCE_S", 0.0)
    found = server.Server("M", entrant("a"), {}, tmp_path / "log")
    found.stop()
    monkeypatch.setattr(found._process, "poll", lambda: None)
    with pytest.raises(BenchError, match="was not up after 0 s, and still starting"):
        found.wait()


def test_what_ends_a_terminal_unwinds_and_what_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server.ended_by_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(SystemExit) as left:
                signal.raise_signal(signal.SIGTERM)
        assert left.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
