"""Whatever of vLLM is patched, called or read is looked at before anything is served."""

import sys
import types

import pytest

from adaspec.errors import ServingError
from adaspec.vllm import signatures
from adaspec.vllm.signatures import NAMES, check_runner, signature_problems
from adaspec.vllm.touchpoints import ENGINE_ARGS


def with_parameters(names):
    """A function that takes these."""
    return eval(f"lambda {', '.join(('self', *names))}: None")


@pytest.fixture
def stand_in(monkeypatch):
    """A vLLM of which nothing is there but what adaspec expects."""
    for each in NAMES:
        module = sys.modules.get(each.module)
        if getattr(module, "stands_in", None) is None:
            module = types.ModuleType(each.module)
            module.stands_in = True
            monkeypatch.setitem(sys.modules, each.module, module)
        owner = vars(module).setdefault(each.owner, type(each.owner, (), {}))
        setattr(owner, each.name, with_parameters(each.parameters))
    whole = types.ModuleType("vllm")
    whole.__version__ = "0.40.0"
    monkeypatch.setitem(sys.modules, "vllm", whole)


def owner_of(name):
    found = next(each for each in NAMES if each.name == name)
    return getattr(sys.modules[found.module], found.owner)


class Part:
    """Has whatever is read of it."""

    def __init__(self, *paths):
        for path in paths:
            name, _, rest = path.partition(".")
            if rest:
                setattr(self, name, getattr(self, name, None) or Part())
                setattr(getattr(self, name), rest, None)
            else:
                setattr(self, name, getattr(self, name, None))


def runner():
    return Part(*signatures.RUNNER_READS)


def drafter(kind=None):
    made = (kind or type("Eagle", (owner_of("_sample_draft_tokens"),), {}))()
    for name in signatures.DRAFTER_READS:
        setattr(made, name, None)
    return made


def refusal(runner, drafter):
    with pytest.raises(ServingError) as caught:
        check_runner(runner, drafter)
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith("vLLM 0.40.0 is not as adaspec knows it: ")
    return line


def test_a_vllm_that_is_as_expected_is_taken(stand_in):
    assert list(signature_problems()) == []
    check_runner(runner(), drafter())
    check_runner(runner(), None)


RUNNING = [each for each in NAMES if each.module != ENGINE_ARGS]
ARGUMENTS = [(each.name, argument) for each in RUNNING for argument in each.parameters]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_a_renamed_argument_is_named_as_the_server_starts(stand_in, name, argument):
    found = next(each for each in RUNNING if each.name == name and argument in each.parameters)
    owner = getattr(sys.modules[found.module], found.owner)
    others = [each for each in found.parameters if each != argument]
    setattr(owner, name, with_parameters([*others, "renamed"]))
    line = refusal(runner(), drafter())
    assert f"{found.dotted} lacks the parameter {argument}" in line


@pytest.mark.parametrize("name", sorted({each.name for each in RUNNING} - {"__init__"}))
def test_a_name_that_is_gone_is_named_as_the_server_starts(stand_in, name):
    owner = owner_of(name)
    made = drafter()
    delattr(owner, name)
    assert f".{owner.__name__}.{name} is missing" in refusal(runner(), made)


def test_a_proposer_that_proposes_by_other_arguments_is_named(stand_in):
    class Odd(owner_of("_sample_draft_tokens")):
        def propose(self, num_speculative_tokens, positions, common_attn_metadata):
            """Of a kind of its own."""

    line = refusal(runner(), drafter(Odd))
    assert "Odd.propose lacks the parameter target_positions" in line


def test_what_is_read_of_a_runner_and_its_drafter_is_there_as_it_starts(stand_in):
    without = [path for path in signatures.RUNNER_READS if path != "input_batch.req_ids"]
    assert "has no 'input_batch.req_ids'" in refusal(Part(*without), drafter())
    made = drafter()
    del made.needs_extra_input_slots
    assert "has no 'needs_extra_input_slots'" in refusal(runner(), made)
