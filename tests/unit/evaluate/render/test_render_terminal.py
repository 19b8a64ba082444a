import io

import pytest
import report_fakes as fakes
from rich.console import Console

from adaspec.evaluate.render.contents import contents_of
from adaspec.evaluate.render.terminal import print_contents
from adaspec.evaluate.report import Report

SIX = (
    "mine",
    "hybrid-splice:14:48:4:10:15",
    "budget:3",
    "a|b_c[red]\x1b[31mb",
    "ema:0.3:1-8=5|3|1",
    "very_long_policy_folder_name_of_somebody_2026",
)


def printed(report, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_contents(contents_of(Report(report)), console)
    return console.file.getvalue()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_report_says_what_was_evaluated_and_what_it_came_to():
    report = fakes.report() | {"engine": "async"}
    entry = next(e for e in report["headline"] if e["workload"] == "all" and e["concurrency"] == 8)
    row = next(r for r in report["rows"] if (r["workload"], r["policy"]) == ("all", "mine"))
    text = printed(report, 300)
    for said in (
        "514 (cnn 67, gsm8k 118, instructcoder 282, sharegpt 47)",
        "366 unpaired; 6 of 2,048 output tokens or more",
        "sharegpt rests on 47 of 143",
        "h100-llama-3.1-8b",
        "orders 3, resamples 40, seed 0",
        "async engine",
        "mine runs at 2.",
        "x no speculation at concurrency 1, 1.",
        "against the best static setting in hindsight it is +",
    ):
        assert said in text, said
    assert f"{1e3 * row['detail']['latency_s']['p95']:.2f}" in text
    line = next(line for line in text.splitlines() if line.startswith("    8 "))
    assert f"{100 * entry['gap_closed']:.0f}%" in line
    assert line_of(text, "worst").split() == ["worst", *["+1.3%"] * 4]
    assert all(line_of(text, name) for name in fakes.WORKLOADS)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_name_and_no_cell_is_cut_at_any_usual_width(width):
    report = fakes.report(SIX)
    for entry in report["headline"]:
        entry["decide_share_of_step"] = 0.012
        entry["lift_over_static_tuned"] = -0.123
    text = printed(report, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text and "\x1b" not in text
    for name in (*SIX, "instructcoder"):
        assert name.partition("\x1b")[0] in text
    for entry in report["headline"]:
        if entry["workload"] == "all":
            low, high = entry["lift_ci95"]
            lift = f"{100 * entry['lift_over_static_best']:+.1f}%"
            assert f"{lift}  [{100 * low:+.1f}, {100 * high:+.1f}]" in text
    row = next(r for r in report["rows"] if (r["workload"], r["policy"]) == ("all", "mine"))
    assert ("3 columns left out: widen the terminal" in text) is (width == 80)
    # Intervals of speedups, where there is room.
    assert (f"[{row['ci95'][0]:.2f}, {row['ci95'][1]:.2f}]" in text) is (width == 140)


def test_what_was_not_computed_is_a_dash_and_what_was_seen_in_training_is_marked():
    report = fakes.report()
    assert ":tuned" not in printed(report)
    for entry in report["headline"]:
        if entry["concurrency"] == 8:
            entry["gap_closed"] = None
    for row in report["rows"]:
        if row["policy"] == "mine":
            row["speedup"] = float("nan")
            row["detail"]["seen_in_training"] = True
    text = printed(report)
    row = next(line for line in text.splitlines() if line.startswith("    8 "))
    assert row.split()[-2] == "–"
    speeds = text.split("Speedup over none on")[1]
    assert line_of(speeds, "mine †").count("–") == len(fakes.CONCURRENCIES)
    assert "not held out" in text


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


def test_a_report_without_a_headline_named_policies_or_rows_still_prints():
    text = printed(fakes.protocol_report())
    assert "lift" not in text
    for name in (*fakes.WORKLOADS, "fixed:ngram:3", "oracle:combine"):
        assert name in text
    assert "static:best" in printed(fakes.report(()))
    empty = {"schema": 1, "cost": "c", "traces": {}, "rows": []}
    assert "nothing was evaluated" in printed(empty)


def test_one_workload_alone_is_called_by_its_name():
    text = printed(fakes.report(workloads=("gsm8k",), concurrencies=(8,)))
    assert "mine on gsm8k" in text
    assert "worst" not in text


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
