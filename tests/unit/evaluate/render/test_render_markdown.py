import report_fakes as fakes

from adaspec.evaluate.render import markdown
from adaspec.evaluate.render.markdown import text_markdown
from adaspec.evaluate.render.table import code, foreign
from adaspec.evaluate.report import Report


def report_markdown(report, plots=()):
    return markdown.report_markdown(Report(report), plots)


def tables(text):
    """Every table as a list of rows, bars that are escaped kept together."""
    found, current = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = line.replace("\\|", "\0").strip("|").split("|")
            current.append([cell.strip().replace("\0", "|") for cell in cells])
        elif current:
            found.append(current)
            current = []
    return found


def test_every_table_has_as_many_cells_in_each_row_as_in_its_head():
    for policies in (("mine",), ("a|b_c", "`tick`", "x*y"), ()):
        for table in tables(report_markdown(fakes.report(policies))):
            assert {len(row) for row in table} == {len(table[0])}


def test_the_headline_table_holds_the_reports_numbers():
    report = fakes.report()
    entry = next(e for e in report["headline"] if e["workload"] == "all" and e["concurrency"] == 32)
    table = next(t for t in tables(report_markdown(report)) if "gap closed" in t[0])
    row = next(row for row in table if row[0] == "32")
    assert row[2] == f"**{100 * entry['lift_over_static_best']:+.1f}%**"
    assert "over `static:tuned`" not in table[0]  # nothing was computed
    assert row[table[0].index("gap closed")] == f"{100 * entry['gap_closed']:.0f}%"


def test_the_headline_of_an_async_engine_has_the_interval_over_the_fresh_rule():
    report = fakes.report()
    assert "static:fresh" not in report_markdown(report)
    for entry in report["headline"]:
        entry["lift_over_static_fresh"] = -0.012
        entry["lift_over_static_fresh_ci95"] = [-0.03, 0.006]
        if entry["concurrency"] == 8:
            entry["lift_over_static_fresh_ci95"] = None
    table = next(t for t in tables(report_markdown(report)) if "gap closed" in t[0])
    fresh = {row[0]: row[table[0].index("over `static:fresh`")] for row in table[2:]}
    assert fresh["32"] == "-1.2% [-3.0, +0.6]"
    assert fresh["8"] == "-1.2%"


def test_names_with_bars_and_underscores_are_escaped():
    text = report_markdown(fakes.report(("a|b_c",)))
    assert "| `a\\|b_c` |" in text
    assert "### `a|b_c` on" in text
    assert text_markdown(code("x`y|z"), in_table=True) == "`` x`y\\|z ``"
    assert text_markdown(foreign("my_work|load <b>")) == "my\\_work\\|load \\<b\\>"


def test_a_name_of_several_lines_stays_on_one():
    assert text_markdown(code("a\nb")) == "`a b`"


def test_each_workload_has_speedups_steps_and_its_winners():
    text = report_markdown(fakes.report())
    for name in fakes.WORKLOADS:
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"### Speedup over `none` on {name}, by concurrency" in section
        assert "Tokens accepted / drafted per request and step" in section
        assert "| `static:best` | 1 | `hybrid-splice:4:48:2:2:5` ▲ KN |" in section
        assert "▲ the winner lies on the edge of its grid" in section


def test_latency_is_written_in_milliseconds():
    report = fakes.report(concurrencies=(8,))
    row = next(r for r in report["rows"] if r["workload"] == "all" and r["policy"] == "mine")
    latency = row["detail"]["latency_s"]
    expected = f"{1e3 * latency['median']:.2f} / {1e3 * latency['p95']:.2f}"
    assert f"| `mine` | {expected} |" in report_markdown(report)


def test_what_was_not_computed_leaves_out_the_table_or_shows_a_dash():
    text = report_markdown(fakes.protocol_report())
    assert "Latency" not in text
    assert "accepted / drafted" not in text
    assert "Headline" not in text
    report = fakes.report()
    report["rows"][0]["speedup"] = None
    assert "| `none` | – |" in report_markdown(report)


def test_defaults_seeds_the_command_and_what_was_left_out_are_there():
    text = report_markdown(fakes.report())
    assert "| `ema` | `ema:0.3:1-8=5\\|3\\|1` |" in text
    assert "adaspec eval traces/specdecode-bench --policy policies/mine -o reports/mine" in text
    assert "seed 0, orders 3, resamples 40, cap 48." in text
    assert "| gsm8k | 118 | 91 | 1 |" in text


def test_plots_are_embedded_by_their_relative_paths():
    plots = [(f"plots/{name}.png", f"The {name}") for name in "abc"]
    text = report_markdown(fakes.report(), plots)
    for path, _ in plots:
        assert text.count(f"]({path})") == 1


def test_a_report_without_rows_says_so():
    empty = {"schema": 1, "cost": None, "batching": "lockstep", "traces": {}, "rows": []}
    assert "nothing was evaluated" in report_markdown(empty)


def test_every_row_that_a_report_shows_is_defined():
    report = fakes.report(batching="lockstep")
    table = next(t for t in tables(report_markdown(report)) if t[0] == ["row", "is"])
    shown = {row["policy"] for row in report["rows"]} - {"mine"}
    assert {row[0].strip("`") for row in table[2:]} == shown


def test_a_greedy_oracle_is_not_called_a_bound():
    text = report_markdown(fakes.report())
    assert "a short fixed draft can beat them" in text
    assert "Only `dp` and `dp-splice` are bounds" in text


def test_the_plots_come_before_the_tables_of_each_workload():
    text = report_markdown(fakes.report(), [("plots/z.png", "z")])
    assert text.index("plots/z.png") < text.index("## All workloads")


def test_a_setting_that_won_at_several_loads_is_named_once_per_workload():
    text = report_markdown(fakes.report())
    won = "| `static:one` | 1, 8, 32, 128 | `hybrid-splice:6:12:2:3:3` |"
    assert text.count(won) == text.count("| `static:one` | 1,") == 1 + len(fakes.WORKLOADS)


def test_a_policy_that_is_the_winner_is_said_to_be_it():
    report = fakes.report()
    for entry in report["headline"]:
        entry["lift_over_static_best"], entry["lift_ci95"] = 0.0, [0.0, 0.0]
    text = report_markdown(report)
    assert "= `static:best`" in text
    assert "[+0.0, +0.0]" not in text
