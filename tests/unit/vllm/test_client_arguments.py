"""What requests may ask of adaspec, and what is said of anything else."""

import types

import pytest
from refusals import refusal

from adaspec.errors import ServingError
from adaspec.vllm import plugin
from adaspec.vllm.client_arguments import NOTHING, UNLIMITED, Limits, limits_of
from adaspec.vllm.options import MAX_VERIFIED
from adaspec.vllm.patching import ATTRIBUTE, SAMPLING_PARAMS


def asking(**extra_args):
    return types.SimpleNamespace(extra_args=extra_args)


@pytest.mark.parametrize(
    ("params", "limits"),
    [
        (None, UNLIMITED),
        (types.SimpleNamespace(extra_args=None), UNLIMITED),
        (asking(other=1, kv_transfer_params={}), UNLIMITED),
        (asking(adaspec="serve"), UNLIMITED),
        (asking(adaspec_cap=MAX_VERIFIED), UNLIMITED),
        (asking(adaspec="off"), NOTHING),
        (asking(adaspec_cap=0), NOTHING),
        (asking(adaspec="off", adaspec_cap=4, adaspec_source="ngram"), NOTHING),
        (asking(adaspec_cap=4), Limits(4)),
        (asking(adaspec_source="ngram"), Limits(drafter=False)),
        (asking(adaspec_source="neural", adaspec_cap=3), Limits(3, copies=False)),
    ],
)
def test_a_request_limits_its_own_drafts(params, limits):
    assert limits_of("r", params, 1.0) == limits


WRONG = [
    ({"adaspec": "of"}, "adaspec is 'of': give one of serve, off"),
    ({"adaspec": ["off"]}, "give one of serve, off"),
    ({"adaspec_cap": -1}, "give a whole number from 0 to 128"),
    ({"adaspec_cap": 4.0}, "whole number"),
    ({"adaspec_source": "splice"}, "give one of ngram, neural"),
    ({"adaspec_soruce": "ngram"}, "did you mean 'adaspec_source'"),
]


@pytest.mark.parametrize(("extra_args", "says"), WRONG)
def test_what_is_wrong_is_said_in_one_line(extra_args, says):
    assert says in refusal(ServingError, limits_of, "r", asking(**extra_args), 1.0)


def test_a_fraction_of_the_requests_that_do_not_say_is_served():
    served = [limits_of(f"r{at}", None, 0.25) is UNLIMITED for at in range(4000)]
    assert served == [limits_of(f"r{at}", None, 0.25) is UNLIMITED for at in range(4000)]
    assert 900 < sum(served) < 1100
    assert limits_of("r", None, 0.0) is NOTHING
    assert limits_of("r", asking(adaspec="serve"), 0.0) is UNLIMITED
    assert limits_of("r", asking(adaspec="off"), 1.0) is NOTHING


def sampling_params():
    class SamplingParams:
        def __init__(self, **extra_args):
            self.extra_args = extra_args

        def verify(self, model_config, speculative_config, tokenizer=None):
            if model_config is None:
                raise ValueError("vLLM's own")

    plugin.patch(SAMPLING_PARAMS, types.SimpleNamespace(SamplingParams=SamplingParams))
    return SamplingParams


def test_wrong_arguments_are_refused_where_adaspec_serves_and_there_alone():
    ours = types.SimpleNamespace(**{ATTRIBUTE: object()})
    made = sampling_params()
    made(adaspec="off", other=3).verify("model", ours)
    made(adaspec="of").verify("model", object(), tokenizer=None)
    for configs, named in ((("model", ours), {}), (("model",), {"speculative_config": ours})):
        with pytest.raises(Exception, match="adaspec is 'of'"):
            made(adaspec="of").verify(*configs, **named)
    with pytest.raises(ValueError, match="vLLM's own"):
        made(adaspec="of").verify(None, ours)
