import io

import pytest
import report_fakes as fakes
from rich.console import Console

from adaspec.errors import EvaluationError
from adaspec.evaluate.render.contents import contents_of
from adaspec.evaluate.render.terminal import print_contents
from adaspec.evaluate.report import Report

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
    print_contents(contents_of(Report(report)), console)
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


def test_the_interval_over_the_fresh_rule_shows_where_there_is_room():
    report = fakes.report()
    for entry in report["headline"]:
        entry["lift_over_static_fresh"] = -0.012
        entry["lift_over_static_fresh_ci95"] = [-0.03, 0.006]
    assert "-1.2% [-3.0, +0.6]" in printed(report, 140)
    narrow = printed(report, 100)
    assert "-1.2%" in narrow and "[-3.0, +0.6]" not in narrow


def test_what_was_not_computed_is_an_en_dash_and_a_column_of_them_is_not_shown():
    report = fakes.report()
    assert ":tuned" not in printed(report)
    for entry in report["headline"]:
        if entry["concurrency"] == 8:
            entry["gap_closed"] = None
    row = next(line for line in printed(report).splitlines() if line.startswith("    8 "))
    assert row.split()[-2] == "–"


def test_not_a_number_is_an_en_dash_too():
    report = fakes.report()
    for row in report["rows"]:
        if row["policy"] == "mine":
            row["speedup"] = float("nan")
    speeds = printed(report).split("Speedup over none on")[1]
    assert line_of(speeds, "mine  ").count("–") == len(fakes.CONCURRENCIES)


def test_every_line_fits_100_columns():
    for report in (fakes.report(SIX), fakes.protocol_report(), fakes.report()):
        assert max(len(line.rstrip()) for line in printed(report).splitlines()) <= 100


def test_no_name_is_cut_short_and_markup_in_one_is_shown_as_it_is():
    text = printed(fakes.report(SIX))
    for name in SIX:
        assert name in text
    assert "…" not in text


def test_winning_settings_stand_below_the_speedups_and_edges_are_flagged():
    text = printed(fakes.report()).split("The winning settings on all workloads, mixed")[1]
    assert line_of(text, "static:best").split() == [
        "static:best", "1", "hybrid-splice:4:48:2:2:5", "▲", "KN"
    ]  # fmt: skip
    assert line_of(text, "fixed:best").split() == ["fixed:best", "1,", "8,", "32", "fixed:neural:3"]
    assert "▲ the winner lies on the edge of its grid" in text


@pytest.mark.parametrize("width", [80, 100])
def test_names_are_whole_where_there_are_many_concurrencies(width):
    text = printed(fakes.report(concurrencies=(1, 2, 4, 8, 16, 32, 64, 128)), width)
    tables = text.split("\n\n")
    for what in ("Speedup over none", "The winning settings", "Latency on"):
        (table,) = (table for table in tables if table.startswith(what))
        assert line_of(table, "static:one ")


def test_intervals_of_speedups_show_where_there_is_room():
    report = fakes.report()
    row = next(r for r in report["rows"] if (r["workload"], r["policy"]) == ("all", "mine"))
    interval = f"[{row['ci95'][0]:.2f}, {row['ci95'][1]:.2f}]"
    assert interval in printed(report, 140)
    assert interval not in printed(report, 80)


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


def charged():
    """Every column filled: what deciding costs, and a static:tuned."""
    report = fakes.report(SIX)
    for entry in report["headline"]:
        entry["decide_share_of_step"] = 0.012
        entry["lift_over_static_tuned"] = -0.123
    return report


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_cell_is_cut_at_any_usual_width(width):
    report = charged()
    text = printed(report, width)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert text.count("conc.  speedup") == len(SIX)
    for entry in report["headline"]:
        if entry["workload"] == "all":
            low, high = entry["lift_ci95"]
            lift = f"{100 * entry['lift_over_static_best']:+.1f}%"
            assert f"{lift}  [{100 * low:+.1f}, {100 * high:+.1f}]" in text


def test_whole_columns_go_where_the_terminal_is_narrow_and_it_says_how_many():
    assert "3 columns left out: widen the terminal, or see report.html" in printed(charged(), 80)
    assert "columns left out" not in printed(charged(), 140)


@pytest.mark.parametrize("width", [80, 100])
def test_workload_names_do_not_break(width):
    for report in (fakes.report(SIX), fakes.protocol_report()):
        assert "instructcoder" in printed(report, width)


def test_a_sentence_says_what_a_policy_gains_at_both_ends():
    text = printed(fakes.report(), 300)
    assert "mine runs at 2." in text
    assert "x no speculation at concurrency 1, 1." in text
    assert "against the best static setting in hindsight it is +" in text


def test_the_slowest_requests_show_beside_those_of_none():
    report = fakes.report()
    text = printed(report).split("Milliseconds per output token")[1]
    row = next(r for r in report["rows"] if r["policy"] == "mine" and r["workload"] == "all")
    assert f"{1e3 * row['detail']['latency_s']['p95']:.2f}" in text


def test_a_policy_that_is_the_winner_has_no_lift_of_zero():
    report = fakes.report()
    for entry in report["headline"]:
        entry["lift_over_static_best"], entry["lift_ci95"] = 0.0, [0.0, 0.0]
    text = printed(report)
    assert "=  static:best" in text
    assert "= static:best" in text.split("of each workload alone")[1]
    assert "[+0.0, +0.0]" not in text


def test_a_workload_that_lost_over_a_fifth_of_its_requests_is_named():
    assert "sharegpt rests on 47 of 143" in printed(fakes.report(), 300)
