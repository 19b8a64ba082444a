import pytest

from adaspec.vllm.names import SERVED, engine_id, trace_key


@pytest.mark.parametrize(
    ("workload", "id"), [("chat", "7"), ("a:b", "c/d e"), ("ü%", "::"), ("x", "1_2")]
)
@pytest.mark.parametrize("around", ["{}", "{}-1a2b3c4d", "cmpl-{}-0-1a2b3c4d"])
def test_a_name_survives_what_an_engine_puts_around_it(workload, id, around):
    assert trace_key(around.format(engine_id(workload, id))) == (workload, id)


def test_samples_of_one_prompt_are_told_apart():
    name = engine_id("chat", "7") + "-1a2b"
    assert trace_key(f"2_{name}") == ("chat", "7#2")


def test_a_request_without_a_name_goes_by_the_engines():
    assert trace_key("cmpl-1a2b-0") == (SERVED, "cmpl-1a2b-0")
