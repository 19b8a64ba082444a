"""What of vLLM is patched, called and read, and whether it is there as expected."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from adaspec.errors import ServingError
from adaspec.vllm.touchpoints import ENGINE_ARGS, RUNNER

_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
_SCHEDULED = "vllm.v1.core.sched.output"


@dataclass(frozen=True, slots=True)
class Name:
    """A function of vLLM's that is patched or called, and the parameters relied on.

    A dataclass's `__init__` stands for its fields; without parameters, being there is enough.
    """

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]
    patched: bool = False

    @property
    def dotted(self) -> str:
        """How people write it."""
        return f"{self.module}.{self.owner}.{self.name}"


NAMES = (
    Name(
        ENGINE_ARGS,
        "EngineArgs",
        "create_speculative_config",
        ("target_model_config", "target_parallel_config"),
        patched=True,
    ),
    Name(RUNNER, "GPUModelRunner", "__init__", ("vllm_config", "device"), patched=True),
    Name(
        RUNNER,
        "GPUModelRunner",
        "propose_draft_token_ids",
        ("scheduler_output", "sampled_token_ids"),
        patched=True,
    ),
    Name(
        _PROPOSER,
        "SpecDecodeBaseProposer",
        "propose",
        ("num_speculative_tokens", "target_positions", "common_attn_metadata"),
        patched=True,
    ),
    Name(
        _PROPOSER,
        "SpecDecodeBaseProposer",
        "_sample_draft_tokens",
        ("hidden_states", "sampling_metadata"),
        patched=True,
    ),
    Name(_PROPOSER, "SpecDecodeBaseProposer", "load_model", ("target_model",), patched=True),
    Name(_PROPOSER, "CommonAttentionMetadata", "__init__", ("max_seq_len",)),
    Name(_SCHEDULED, "SchedulerOutput", "__init__", ("scheduled_spec_decode_tokens",)),
    Name(RUNNER, "CachedRequestState", "__init__", ("sampling_params",)),
    Name("vllm.sampling_params", "SamplingParams", "min_tokens", ()),
    Name("vllm.sampling_params", "SamplingParams", "all_stop_token_ids", ()),
)
RUNNER_READS = (
    "requests",
    "vllm_config.model_config",
    "vllm_config.parallel_config",
    "scheduler_config.max_num_seqs",
    "input_batch.num_reqs",
    "input_batch.req_ids",
    "input_batch.token_ids_cpu",
    "input_batch.num_tokens_no_spec",
    "input_batch.num_prompt_tokens",
)
DRAFTER_READS = ("needs_extra_input_slots", "max_model_len", "num_speculative_tokens")
"""What is read of a runner, and of a neural drafter in it."""


def installed_version() -> str:
    """The version of the vLLM that is imported here."""
    return str(importlib.import_module("vllm").__version__)


def signature_problems(names: Iterable[Name] = NAMES) -> Iterator[str]:
    """One line for every patched or called name that is not as this file expects it."""
    for each in names:
        try:
            found = getattr(getattr(importlib.import_module(each.module), each.owner), each.name)
        except (ImportError, AttributeError):
            yield f"{each.dotted} is missing"
        else:
            yield from _lacks(found, each, each.dotted)


def check_arguments() -> None:
    """Refuse a vLLM whose engine takes its arguments otherwise."""
    _refuse(signature_problems(each for each in NAMES if each.module == ENGINE_ARGS))


def check_runner(runner: Any, drafter: Any) -> None:
    """Refuse a runner and its neural drafter, if any, that are not as expected."""
    here = [each for each in NAMES if each.module != ENGINE_ARGS]
    _refuse(signature_problems(here))
    _refuse(_unread(runner, RUNNER_READS))
    if drafter is not None:
        # A kind of proposer may have methods of its own in the place of the common ones.
        kind = type(drafter)
        for each in here:
            if each.owner == "SpecDecodeBaseProposer":
                own = getattr(kind, each.name)
                _refuse(_lacks(own, each, f"{kind.__name__}.{each.name}"))
        _refuse(_unread(drafter, DRAFTER_READS))


def _lacks(found: Any, name: Name, called: str) -> Iterator[str]:
    if name.parameters:
        has = inspect.signature(inspect.unwrap(found)).parameters
        lacks = [parameter for parameter in name.parameters if parameter not in has]
        if lacks:
            yield f"{called} lacks the parameter {', '.join(lacks)}"


def _unread(part: Any, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            operator.attrgetter(path)(part)
        except AttributeError:
            yield f"{type(part).__name__} has no '{path}'"


def _refuse(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ServingError(
            f"vLLM {installed_version()} is not as adaspec knows it: {problem}; install a vLLM "
            "that it knows, or an adaspec that knows yours ('adaspec doctor' says more)"
        )
