import io

import pytest
import report_fakes as fakes
from rich.console import Console

from adaspec.errors import EvaluationError
from adaspec.evaluate.render.table import print_report

SIX = (
    "mine",
    "hybrid-splice:14:48:4:10:15",
    "batch-table:1-8=5,9-32=3,33-256=1",
    "a|b_c[red]",
    "ema:0.3:1-8=5|3|1",
    "very_long_policy_folder_name_of_somebody_2026",
)


def printed(report, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console)
    return console.file.getvalue()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_headline_shows_lift_with_its_interval_and_gap_closed():
    report = fakes.report()
    entry = next(e for e in report["headline"] if e["workload"] == "all" and e["concurrency"] == 8)
    text = printed(report)
    row = next(line for line in text.splitlines() if line.startswith("    8 "))
    assert f"{100 * entry['lift_over_static_best']:+.1f}%" in row
    low, high = entry["lift_ci95"]
    assert f"[{100 * low:+.1f}, {100 * high:+.1f}]" in row
    assert f"{100 * entry['gap_closed']:.0f}%" in row


def test_what_was_not_computed_is_an_en_dash():
    row = next(line for line in printed(fakes.report()).splitlines() if line.startswith("    8 "))
    assert " – " in row  # static:tuned


def test_not_a_number_is_an_en_dash_too():
    report = fakes.report()
    for row in report["rows"]:
        if row["policy"] == "mine":
            row["speedup"] = float("nan")
    assert line_of(printed(report), "mine  ").count("–") == len(fakes.CONCURRENCIES)


def test_every_line_fits_100_columns():
    for report in (fakes.report(SIX), fakes.protocol_report(), fakes.report()):
        assert max(len(line.rstrip()) for line in printed(report).splitlines()) <= 100


def test_no_name_is_cut_short_and_markup_in_one_is_shown_as_it_is():
    text = printed(fakes.report(SIX))
    for name in SIX:
        assert name in text
    assert "…" not in text.replace("…to", "")


def test_winning_specs_stand_beside_the_speedups_and_edges_are_flagged():
    text = printed(fakes.report())
    assert "hybrid-splice:4:48:2:2:5 ▲KN (1)" in text
    assert "fixed:neural:3 (1, 8, 32)" in text
    assert "▲ the winner lies on the edge of its grid" in text


def test_specs_move_below_the_table_where_there_are_many_concurrencies():
    text = printed(fakes.report(concurrencies=(1, 2, 4, 8, 16, 32, 64, 128)))
    assert "static:one  hybrid-splice:6:12:2:3:3" in text


def test_the_worst_lift_over_workloads_is_shown_below_each_workload():
    text = printed(fakes.report())
    assert line_of(text, "worst").split() == ["worst", *["+1.3%"] * 4]
    for name in fakes.WORKLOADS:
        assert line_of(text, name)


def test_the_header_says_what_was_used_and_left_out_and_why():
    text = printed(fakes.report())
    assert "514 (cnn 67, gsm8k 118, instructcoder 282, sharegpt 47)" in text
    assert "366 unpaired; 6 of 2,048 output tokens or more" in text
    assert "h100-llama-3.1-8b" in text
    assert "orders 3, resamples 40, seed 0" in text


def test_a_policy_that_saw_these_requests_is_marked():
    report = fakes.report()
    for row in report["rows"]:
        if row["policy"] == "mine":
            row["detail"]["seen_in_training"] = True
    text = printed(report)
    assert line_of(text, "mine †")
    assert "not held out" in text


def test_a_protocol_report_shows_each_workload_and_no_headline():
    text = printed(fakes.protocol_report())
    assert "lift" not in text
    for name in (*fakes.WORKLOADS, "fixed:ngram:3", "oracle:combine"):
        assert name in text


def test_a_report_without_named_policies_or_rows_still_prints():
    assert "static:best" in printed(fakes.report(()))
    empty = {"schema": 1, "cost": "c", "batching": "lockstep", "traces": {}, "rows": []}
    assert "nothing was evaluated" in printed(empty)


def test_one_workload_alone_is_called_by_its_name():
    text = printed(fakes.report(workloads=("gsm8k",), concurrencies=(8,)))
    assert "mine on gsm8k" in text
    assert "worst" not in text


def test_a_newer_schema_is_refused():
    with pytest.raises(EvaluationError, match="schema 2 is not 1"):
        printed({**fakes.report(), "schema": 2})


def test_escape_sequences_in_a_name_do_not_reach_the_terminal():
    assert "\x1b" not in printed(fakes.report(("a\x1b[31mb",)))
