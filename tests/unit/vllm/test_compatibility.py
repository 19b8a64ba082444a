"""Whatever of vLLM is patched, called or read is looked at before anything is served."""

import sys
import types

import pytest

from adaspec.errors import ServingError
from adaspec.vllm import compatibility
from adaspec.vllm.compatibility import FUNCTIONS, check_runner, signature_problems
from adaspec.vllm.patching import ENGINE_ARGS


def parts_of(path):
    """The module, the class and the name of what a path leads to."""
    module, _, rest = path.partition(":")
    return module, *rest.split(".")


def with_parameters(names):
    """A function that takes these."""
    return eval(f"lambda {', '.join(('self', *names))}: None")


@pytest.fixture
def stand_in(monkeypatch):
    """A vLLM of which nothing is there but what adaspec expects."""
    for path, parameters in FUNCTIONS.items():
        module_name, owner_name, name = parts_of(path)
        module = sys.modules.get(module_name)
        if getattr(module, "stands_in", None) is None:
            module = types.ModuleType(module_name)
            module.stands_in = True
            monkeypatch.setitem(sys.modules, module_name, module)
        owner = vars(module).setdefault(owner_name, type(owner_name, (), {}))
        setattr(owner, name, with_parameters(parameters))
    vllm = types.ModuleType("vllm")
    vllm.__version__ = "0.40.0"
    monkeypatch.setitem(sys.modules, "vllm", vllm)


def owner_of(name):
    module, owner, _ = next(filter(lambda parts: parts[2] == name, map(parts_of, FUNCTIONS)))
    return getattr(sys.modules[module], owner)


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
    return Part(*compatibility.RUNNER_ATTRIBUTES)


def drafter(kind=None):
    made = (kind or type("Eagle", (owner_of("_sample_draft_tokens"),), {}))()
    for name in compatibility.DRAFTER_ATTRIBUTES:
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


RUNNING = [path for path in FUNCTIONS if not path.startswith(ENGINE_ARGS)]


@pytest.mark.parametrize("key", RUNNING)
def test_what_was_renamed_is_named_as_the_server_starts(stand_in, key):
    module, owner, name = parts_of(key)
    holder, made = getattr(sys.modules[module], owner), drafter()
    for argument in FUNCTIONS[key]:
        others = [each for each in FUNCTIONS[key] if each != argument]
        setattr(holder, name, with_parameters([*others, "renamed"]))
        lacks = f"{module}.{owner}.{name} lacks the parameter {argument}"
        assert lacks in refusal(runner(), made)
    if name != "__init__":
        delattr(holder, name)
        assert f".{owner}.{name} is missing" in refusal(runner(), made)


def test_what_is_called_and_read_of_a_runner_and_its_drafter_is_there_as_it_starts(stand_in):
    class Odd(owner_of("_sample_draft_tokens")):
        def propose(self, num_speculative_tokens, positions, common_attn_metadata):
            """Of a kind of its own."""

    assert "Odd.propose lacks the parameter target_positions" in refusal(runner(), drafter(Odd))
    without = [path for path in compatibility.RUNNER_ATTRIBUTES if path != "input_batch.req_ids"]
    assert "has no 'input_batch.req_ids'" in refusal(Part(*without), drafter())
    made = drafter()
    del made.needs_extra_input_slots
    assert "has no 'needs_extra_input_slots'" in refusal(runner(), made)
