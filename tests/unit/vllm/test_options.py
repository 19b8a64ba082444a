"""What operators and requests may ask of adaspec, and what is said of anything else."""

import types

import pytest
from refusals import refusal

from adaspec.errors import ServingError
from adaspec.vllm import plugin
from adaspec.vllm.options import read_options
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, SAMPLING_PARAMS
from adaspec.vllm.session.requests import is_served


def test_what_is_not_written_is_left_open_and_what_says_how_a_drafter_is_loaded_handed_on():
    options = read_options({"method": "adaspec", "draft-tensor-parallel-size": 2})
    assert options.model is options.policy is options.num_speculative_tokens is None
    assert options.mode == "serve"
    assert options.guard
    assert options.passed == {"draft_tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mode": "sreve"}, "did you mean 'serve'"),
        ({"draft_method": "eagle"}, "a model as well"),
        ({"parallel_drafting": 1}, "unknown key 'parallel_drafting'"),
        ({"modle": 1, "polciy": 1}, "did you mean 'model'?; unknown key 'polciy'; did you"),
        ({"Trace-Dir": "x"}, "did you mean 'trace_dir'"),
        ({"": 1}, "unknown key '' (known: "),
        ({"mode": "record"}, "trace_dir"),
        ({"record_fraction": 0.1}, "trace_dir"),
        ({"trace_dir": "x"}, "trace_dir is 'x': give record_fraction as well"),
        ({"mode": "record", "trace_dir": "x", "record_fraction": 0}, "nothing is recorded"),
        (
            {"mode": "record", "trace_dir": "x", "mode_file": "y"},
            "mode_file is 'y': give it without mode 'record'",
        ),
        ({"baseline": "eagle:3", "guard": False}, "give guard true, which compares with it"),
        (
            {"baseline": "eagle:3", "trace_dir": "x", "record_fraction": 0.1},
            "baseline is 'eagle:3': give it where nothing is recorded",
        ),
        ({"replica": 2}, "unknown key 'replica'"),
    ],
)
def test_what_is_wrong_or_does_not_go_together_is_said_in_one_line(config, says):
    said = refusal(ServingError, read_options, {"method": "adaspec", **config})
    assert says in said
    assert len(said) < 800


def test_a_fraction_of_the_requests_that_do_not_say_off_is_served():
    served = [is_served(f"r{at}", None, 0.25) for at in range(4000)]
    assert served == [is_served(f"r{at}", None, 0.25) for at in range(4000)]
    assert 900 < sum(served) < 1100
    assert not is_served("r", None, 0.0)
    assert not is_served("r", types.SimpleNamespace(extra_args={"adaspec": "off"}), 1.0)


def test_wrong_arguments_are_refused_where_adaspec_serves_and_there_alone():
    class Params:
        def __init__(self, **extra_args):
            self.extra_args = extra_args

        def verify(self, model_config, speculative_config, tokenizer=None):
            if model_config is None:
                raise ValueError("vLLM's own")

    plugin.patch(SAMPLING_PARAMS, types.SimpleNamespace(SamplingParams=Params))
    ours = types.SimpleNamespace(**{OPTIONS_ATTRIBUTE: object()})
    Params(adaspec="off", other=3).verify("model", ours)
    Params(adaspec="of").verify("model", object(), tokenizer=None)
    for configs, named in ((("model", ours), {}), (("model",), {"speculative_config": ours})):
        for extra_args, says in (
            ({"adaspec": "of"}, "adaspec is 'of': give 'off', or leave it out"),
            ({"adaspec": ["off"]}, "give 'off'"),
            ({"adaspec_of": "off"}, "unknown argument 'adaspec_of'; did you mean 'adaspec'"),
        ):
            with pytest.raises(Exception, match=says):
                Params(**extra_args).verify(*configs, **named)
    with pytest.raises(ValueError, match="vLLM's own"):
        Params(adaspec="of").verify(None, ours)
