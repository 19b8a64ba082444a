from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from adaspec.errors import SpecError
from adaspec.policy.static import KINDS, StaticPolicy, StaticRule, parse_policy, rule_spec
from adaspec.replay.contender import parse_contender
from adaspec.replay.oracles import ORACLES, Oracle
from adaspec.replay.suffix import SuffixDecoding

RULES = {
    "none": StaticRule(),
    "fixed:ngram:5": StaticRule(min_match=3, ngram_len=5),
    "fixed:ngram:5:2": StaticRule(min_match=2, ngram_len=5),
    "fixed:neural:4": StaticRule(neural_len=4),
    "hybrid:5:12:0": StaticRule(min_match=5, ngram_len=12),
    "hybrid:4:16:3": StaticRule(min_match=4, ngram_len=16, neural_len=3),
    "hybrid-splice:4:20:2:3:5": StaticRule(4, 20, 2, 3, 5),
    "trtllm:5": StaticRule(4, 5, 5, always_drafts=True),
}

MALFORMED = {
    "none:1": "1 values, at most 0",
    "fixed:neural:0": "K=0 is outside 1..",
    "fixed:neural:": "K is '', not a whole number",
    "fixed:neural:\u0663": "not a whole number",
    "fixed:ngram:5:33": "MIN=33 is outside 1..32",
    "hybrid-splice:4:20:0": "KE=0 is outside",
    "fixed:neural:" + "9" * 5000: "printable characters",
    "suffix:1:nan": "PROB is 'nan', not a number from 0 to 1",
    "hybird:4:16:3": "did you mean 'hybrid'",
    "oracle:plansplice": "did you mean 'plan-splice'? Known: oracle:ngram, ",
}
REPLAYED = {
    "suffix": SuffixDecoding("suffix", 1.0, 0.1),  # as in vLLM
    "suffix:2:0": SuffixDecoding("suffix:2:0", 2.0, 0.0),
    **{f"oracle:{kind}": Oracle(kind) for kind in ORACLES},
}


@pytest.mark.parametrize("spec", RULES)
def test_every_form_means_its_rule(spec):
    policy = parse_policy(spec)
    assert isinstance(policy, StaticPolicy)
    assert (policy.name, policy.rule) == (spec, RULES[spec])


@pytest.mark.parametrize("head", KINDS)
def test_a_bare_spec_means_its_default(head):
    defaults = (field.default for field in KINDS[head].fields)
    assert parse_policy(head) == replace(parse_policy(rule_spec(head, *defaults)), name=head)


@pytest.mark.parametrize("spec", REPLAYED)
def test_what_only_replays_know_has_its_forms_too(spec):
    assert parse_contender(spec) == REPLAYED[spec]


@pytest.mark.parametrize("spec", MALFORMED)
def test_a_malformed_or_unknown_spec_is_refused_in_one_line(spec):
    said = refusal(SpecError, parse_contender, spec)
    assert MALFORMED[spec] in said
    assert len(said.partition(" Known: ")[0]) < 300


SPEC_LIKE = st.lists(
    st.one_of(
        st.sampled_from(["fixed", "ngram", "neural", "hybrid", "hybrid-splice", "oracle"]),
        st.sampled_from(["budget", "trtllm", ",", "0.2", "plan", "none", ""]),
        st.text("0123456789,-=.e\u0665\u00b2 ", max_size=8),
        st.text(max_size=6),
    ),
    max_size=7,
).map(":".join)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(), SPEC_LIKE))
def test_whatever_is_written_is_a_spec_or_one_clear_refusal(text):
    if text.startswith("python:"):
        return  # would load whatever the text names
    try:
        contender = parse_contender(text)
    except SpecError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert contender.name == text
