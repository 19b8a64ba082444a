import numpy as np
import pytest
import report_fakes as fakes

from adaspec.evaluate.acceptance import acceptance, examples, pooled, survival
from adaspec.evaluate.render import trace_plots

ALL = (
    trace_plots.positions_figure,
    trace_plots.requests_figure,
    trace_plots.survival_figure,
    trace_plots.strips_figure,
    trace_plots.difference_figure,
)


@pytest.fixture(scope="module")
def found():
    made = fakes.requests()
    return acceptance(made, fakes.ngram_of(made))


def test_counts_start_at_position_one_and_nulls_stay_null():
    made = fakes.requests(1)[0]
    given = np.where(np.arange(len(made.output_tokens)) == 5, -1, 2)
    (each,) = acceptance([made], lambda _: given)
    assert each.paired
    assert len(each.ngram) == len(made.output_tokens) - 1
    assert each.ngram[4] == -1
    assert each.neural[0] == made.neural_accepted[1]


def test_an_unpaired_request_has_no_differences():
    made = fakes.requests(1, paired=False)
    (each, _) = acceptance(made, fakes.ngram_of(made))
    assert not each.paired
    assert len(each.differences()) == 0


def test_survival_is_the_share_of_positions_that_accept_at_least_j():
    assert survival(np.array([0, 0, 2, 5]), 3).tolist() == [1.0, 0.5, 0.5, 0.25]


def test_the_survival_lines_hold_the_traces_shares(found):
    axes = trace_plots.survival_figure(found).axes
    for axes_of, source in zip(axes, ("neural", "ngram"), strict=True):
        line = next(each for each in axes_of.get_lines() if each.get_gid() == "code")
        expected = survival(pooled(found, "code", source), 20)
        assert np.allclose(line.get_ydata(), expected[expected > 0])


def test_positions_are_drawn_as_recorded_neural_up_and_ngram_down(found):
    figure = trace_plots.positions_figure(found, per_workload=1)
    (request,) = examples(found, "chat", 1)
    drawn = {each.get_gid(): each.get_data().values for each in figure.axes[0].patches}
    assert drawn["neural"].tolist() == request.neural.tolist()
    assert drawn["ngram"].tolist() == (-request.ngram).tolist()


def test_requests_are_chosen_the_same_way_every_time_and_spread(found):
    picked = examples(found, "code", 3)
    assert picked == examples(list(reversed(found)), "code", 3)
    means = [each.ngram.mean() for each in picked]
    assert means == sorted(means)
    assert len({each.id for each in picked}) == 3


def test_the_histogram_of_differences_adds_to_one(found):
    for axes in trace_plots.difference_figure(found).axes:
        heights = [bar.get_height() for bar in axes.patches]
        assert sum(heights) == pytest.approx(1)


def test_strips_hold_the_differences_of_each_request(found):
    figure = trace_plots.strips_figure(found)
    picture = figure.axes[0].get_images()[0].get_array()
    rows = sorted(
        (each.differences() for each in found if each.workload == "chat"), key=lambda d: -d.mean()
    )
    shown = min(len(rows[0]), picture.shape[1])
    assert picture[0][:shown].tolist() == rows[0][:shown].tolist()


def test_a_line_per_request_mean_rises(found):
    axes = trace_plots.requests_figure(found).axes[0]
    (line,) = axes.get_lines()
    assert np.all(np.diff(line.get_ydata()) >= 0)


def test_hundreds_of_requests_are_drawn_as_at_most_sixty_strips():
    found = acceptance(made := fakes.requests(150), fakes.ngram_of(made))
    for axes in trace_plots.strips_figure(found).axes[:2]:
        assert axes.get_images()[0].get_array().shape[0] == 60


@pytest.mark.parametrize("draw", ALL)
def test_nothing_is_drawn_from_nothing(draw):
    assert draw([]) is None
    short = fakes.requests(1)[:1]
    bare = [type(r)(r.workload, r.id, r.prompt_tokens, r.output_tokens) for r in short]
    assert draw(acceptance(bare, lambda _: None)) is None


@pytest.mark.parametrize("draw", ALL)
def test_ngram_alone_is_drawn_or_left_out_but_never_fails(draw):
    made = fakes.requests(4)
    bare = [type(r)(r.workload, r.id, r.prompt_tokens, r.output_tokens) for r in made]
    figure = draw(acceptance(bare, fakes.ngram_of(made)))
    assert (figure is None) == (draw in (trace_plots.strips_figure, trace_plots.difference_figure))
    if figure is not None:
        figure.draw_without_rendering()
