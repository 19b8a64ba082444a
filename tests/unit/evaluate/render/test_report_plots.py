import numpy as np
import pytest
import report_fakes as fakes
from matplotlib.text import Text

from adaspec.evaluate.render import report_plots
from adaspec.evaluate.render.style import canvas, label_ends, looks, place, spread_out
from adaspec.evaluate.report import Report

SIX = ("mine", "b", "c", "d", "$e$", "_f")


def line(axes, name):
    return next(each for each in axes.get_lines() if each.get_gid() == name)


def values(report, workload, policy, key="speedup", part="rows"):
    found = [
        (row["concurrency"], row[key])
        for row in report[part]
        if row["workload"] == workload and row["policy"] == policy
    ]
    return [value for _, value in sorted(found)]


def texts(figure):
    axes = [text.get_text() for each in figure.axes for text in each.texts]
    return axes + [text.get_text() for text in figure.texts]


@pytest.mark.parametrize("policy", ["mine", "static:best", "fixed:best", "oracle:plan-splice"])
def test_the_speedup_lines_hold_the_reports_numbers(policy):
    report = fakes.report()
    (axes,) = report_plots.speedup_figure(Report(report)).axes
    assert list(line(axes, policy).get_ydata()) == values(report, "all", policy)
    assert list(line(axes, policy).get_xdata()) == list(fakes.CONCURRENCIES)


def test_every_line_is_labelled_and_none_is_a_line_at_one():
    figure = report_plots.speedup_figure(Report(fakes.report(SIX)))
    (axes,) = figure.axes
    assert {*SIX, "none", "static:best", "oracle:combine"} <= set(texts(figure))
    assert any(list(each.get_ydata()) == [1.0, 1.0] for each in axes.get_lines())


def drawn_of(report):
    found = (
        report_plots.speedup_figure(Report(report)),
        report_plots.lift_figure(Report(report)),
        report_plots.workloads_figure(Report(report)),
        report_plots.lifts_by_workload_figure(Report(report)),
        report_plots.oracles_figure(Report(report)),
    )
    return [figure for figure in found if figure is not None]


@pytest.mark.parametrize(
    "report", [fakes.report(SIX), fakes.report(), fakes.protocol_report()], ids=["6", "1", "p"]
)
def test_labels_do_not_overlap_and_no_text_leaves_the_picture(report):
    for figure in drawn_of(report):
        figure.draw_without_rendering()
        renderer, edge = figure.canvas.get_renderer(), figure.bbox
        for axes in figure.axes:
            labels = [t for t in (axes.xaxis.label, axes.yaxis.label, *axes.texts) if t.get_text()]
            for box in (each.get_window_extent(renderer) for each in labels):
                assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= edge.x1 and box.y1 <= edge.y1
            beside = [text_box(each, renderer) for each in axes.texts]
            for at, box in enumerate(beside):
                for other in beside[at + 1 :]:
                    across = min(box.x1, other.x1) - max(box.x0, other.x0)
                    along = min(box.y1, other.y1) - max(box.y0, other.y0)
                    assert across <= 0 or along <= 0.3 * box.height


def text_box(annotation, renderer):
    """The box of a label's text, without the line that leads to it."""
    return Text.get_window_extent(annotation, renderer)


def test_intervals_are_drawn_where_the_report_has_them():
    report = fakes.report()
    (axes,) = report_plots.speedup_figure(Report(report)).axes
    low, high = values(report, "all", "mine", "ci95")[0]
    segments = [s for each in axes.collections for s in each.get_segments()]
    assert any(np.allclose(s[:, 1], [low, high]) for s in segments)


def test_the_lift_points_hold_the_reports_lifts_around_a_line_at_zero():
    report = fakes.report(("mine", "b"))
    (axes,) = report_plots.lift_figure(Report(report)).axes
    for policy in ("mine", "b"):
        expected = values(report, "all", policy, "lift_over_static_best", "headline")
        assert list(line(axes, policy).get_ydata()) == expected
    assert any(list(each.get_ydata()) == [0, 0] for each in axes.get_lines())
    low, high = axes.get_xlim()
    assert all(low < x < high for p in ("mine", "b") for x in line(axes, p).get_xdata())


def test_bars_start_at_zero_and_hold_every_workload():
    report = fakes.report()
    figure = report_plots.oracles_figure(Report(report))
    assert len(figure.axes) == 1 + len(fakes.WORKLOADS)
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
    heights = [
        bar.get_height()
        for group in figure.axes[0].containers
        if group.patches[0].get_gid() == "oracle:neural"
        for bar in group
    ]
    assert heights == values(report, "all", "oracle:neural")


def test_each_workload_has_axes_of_its_own():
    figure = report_plots.workloads_figure(Report(fakes.report()))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == list(fakes.WORKLOADS)


def test_one_concurrency_is_drawn_as_a_row_per_policy():
    report = fakes.report(concurrencies=(8,))
    (axes,) = report_plots.speedup_figure(Report(report)).axes
    assert "mine" in [tick.get_text() for tick in axes.get_yticklabels()]
    assert f"{values(report, 'all', 'mine')[0]:.2f}x" in texts(axes.figure)


def test_what_a_report_does_not_hold_is_not_drawn():
    assert report_plots.lift_figure(Report(fakes.report(()))) is None
    assert report_plots.lift_figure(Report(fakes.protocol_report())) is None
    assert report_plots.speedup_figure(Report(fakes.protocol_report())) is None
    assert report_plots.workloads_figure(Report(fakes.report(workloads=("gsm8k",)))) is None
    empty = {"schema": 1, "rows": [], "headline": []}
    assert report_plots.speedup_figure(Report(empty)) is None
    assert report_plots.oracles_figure(Report(empty)) is None


def test_missing_numbers_leave_gaps_instead_of_failing():
    report = fakes.report()
    for row in report["rows"]:
        if row["concurrency"] == 8:
            row["speedup"] = None
    for entry in report["headline"]:
        entry["lift_over_static_best"] = entry["lift_ci95"] = None
    (axes,) = report_plots.speedup_figure(Report(report)).axes
    assert list(line(axes, "mine").get_xdata()) == [1, 32, 128]
    assert report_plots.lift_figure(Report(report)) is not None
    assert report_plots.oracles_figure(Report(report)) is not None


def test_a_policy_has_one_colour_in_every_picture():
    report = fakes.report(("mine", "b"))
    colour = looks(Report(report))["b"].colour
    for figure in (
        report_plots.speedup_figure(Report(report)),
        report_plots.lift_figure(Report(report)),
    ):
        assert line(figure.axes[0], "b").get_color() == colour
    assert looks(Report(fakes.report(("x", "b"), ("gsm8k",))))["b"].colour == colour


def test_spread_labels_keep_their_order_their_gap_and_the_room():
    rng = np.random.default_rng(0)
    for _ in range(50):
        wanted = rng.uniform(0, 100, 7).tolist()
        placed = np.array(spread_out(wanted, 10, 100))
        assert np.all(np.diff(placed[np.argsort(wanted)]) >= 10 - 1e-9)
        assert placed.min() >= 5 - 1e-9 and placed.max() <= 95 + 1e-9
    assert spread_out([10, 50, 90], 10, 100) == [10, 50, 90]


def test_labels_on_a_log_axis_stand_at_their_values():
    figure = canvas(3, "t", "n")[0]
    axes = place(figure, 1, 0.5, 4, 2)
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1)
    label_ends(axes, [(1e-2, "a", "k")])
    assert axes.texts[0].xyann[1] == pytest.approx(1 / 3)


def test_adaptive_best_is_drawn_and_what_coincides_with_static_best_is_said_not_drawn():
    report = fakes.report()
    assert line(report_plots.speedup_figure(Report(report)).axes[0], "adaptive:best")
    assert line(report_plots.workloads_figure(Report(report)).axes[0], "adaptive:best")
    best = {
        (r["workload"], r["concurrency"]): r["speedup"]
        for r in report["rows"]
        if r["policy"] == "static:best"
    }
    for row in report["rows"]:
        if row["policy"] == "hybrid:best":
            row["speedup"] = best[row["workload"], row["concurrency"]]
    figure = report_plots.speedup_figure(Report(report))
    assert "hybrid:best" not in [each.get_gid() for each in figure.axes[0].get_lines()]
    assert any("hybrid:best = static:best" in text for text in texts(figure))
