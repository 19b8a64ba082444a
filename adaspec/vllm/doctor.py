"""Says whether serving will work on this machine, and if not, why.

A process of its own imports vLLM, as a server would, and looks at one part after the other: none
that is broken hides another, and what ends that process is said, too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from adaspec.errors import AdaspecError
from adaspec.vllm import compatibility
from adaspec.vllm.patching import OPTIONS_ATTRIBUTE, V2_VARIABLE, in_one_line

MARK = "adaspec-finding: "
"""What begins a line of that process in which a finding stands; vLLM may write others."""
OTHER_VLLM = f"install vLLM {' or '.join(compatibility.KNOWN)} here, or an adaspec that knows yours"
AGAIN = "install adaspec again into this environment"


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one part of what serving needs."""

    part: str
    ok: bool
    """Whether it will work, be it with some doubt."""
    found: str
    advice: str = ""
    """What to do about it; empty if all is well."""


Check = Callable[[], tuple[bool, str, str]]
"""Says what a `Finding` says of a part, or raises what is wrong with it."""


def examine(**asked: str | None) -> list[Finding]:
    """Check everything that serving needs, in the order in which it is needed.

    `asked` are the policy, model, draft and draft_method that a server would be told.
    """
    logged = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    command = [sys.executable, "-m", "adaspec.vllm.doctor", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **logged})
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    findings = [Finding(**json.loads(line.removeprefix(MARK))) for line in lines]
    if done.returncode:
        part = [*parts_of(**asked)][len(findings)]
        said = (done.stderr.strip() or "nothing").splitlines()[-1].strip()
        found = f"the process that looked at it ended with status {done.returncode}, saying: {said}"
        findings.append(Finding(part, False, found, "mend that, then run this again"))
    return findings


def look(asked: dict[str, str | None]) -> None:
    """Look at every part in this process, and print a line for each."""
    for part, check in parts_of(**asked).items():
        try:
            finding = Finding(part, *check())
        except AdaspecError as error:
            finding = Finding(part, False, str(error), "change what this line names")
        except Exception as error:
            advice = OTHER_VLLM if part in ("vllm", "runner") else AGAIN
            finding = Finding(part, False, in_one_line(error, 300), advice)
        print(MARK + json.dumps(asdict(finding)), flush=True)


def parts_of(
    policy: str | None = None,
    model: str | None = None,
    draft: str | None = None,
    draft_method: str | None = None,
) -> dict[str, Check]:
    """The parts, and what looks at each."""
    parts = {"adaspec": _adaspec, "vllm": _vllm, "plug-in": _plugin, "runner": _runner}
    if model is None:
        return {**parts, "policy": partial(_policy, policy)}
    asked = {"policy": policy, "model": draft, "draft_method": draft_method}
    return {**parts, "model": partial(_model, model, asked)}


def _adaspec() -> tuple[bool, str, str]:
    for name in ("choice", "configuration", "recorder"):
        importlib.import_module(f"adaspec.vllm.{name}")
    return True, "whole, with all that it needs", ""


def _vllm() -> tuple[bool, str, str]:
    version = compatibility.installed_version()
    problem = compatibility.version_problem(version)
    if problem:
        return False, problem, OTHER_VLLM
    from vllm.platforms import current_platform

    device = current_platform.get_device_name()
    return True, f"{version} on {device or current_platform.device_type}", ""


def _plugin() -> tuple[bool, str, str]:
    problem = plugin_problem()
    return not problem, problem or "vLLM finds adaspec in this environment", problem and AGAIN


def plugin_problem() -> str:
    """Why the processes that vLLM starts will not find adaspec; empty if they do."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "adaspec" not in [name.strip() for name in allowed.split(",")]:
        return f"VLLM_PLUGINS={allowed} leaves adaspec out: unset it, or add adaspec to it"
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="adaspec"):
        return "adaspec has no entry point in this environment: pip install it where vLLM runs"
    return ""


def _runner() -> tuple[bool, str, str]:
    """Which model runner would serve and why, and whether it is as adaspec knows it."""
    from adaspec.vllm.choice import runner_of
    from adaspec.vllm.configuration import on_cpu

    runner, why = runner_of(on_cpu())
    functions, advice = compatibility.FUNCTIONS_V1, OTHER_VLLM
    found = f"V1, synchronous: {why}"
    if runner == "V2":
        functions = compatibility.FUNCTIONS_V2
        advice = f"{OTHER_VLLM}; or set {V2_VARIABLE}=0"
        found = "V2, asynchronous, as far as vLLM takes it for the model and its settings"
    problems = [*compatibility.signature_problems(functions | compatibility.FUNCTIONS_OF_SERVERS)]
    if problems:
        return False, f"{runner} would serve, but {'; '.join(problems)}", advice
    return True, found, ""


def _policy(name: str | None) -> tuple[bool, str, str]:
    from adaspec.policy.artifact import shipped_policies
    from adaspec.vllm.choice import named_policy

    names = [*shipped_policies()] if name is None else [name]
    for each in names:
        named_policy(each)
    return True, f"can be served: {', '.join(names)}", ""


def _model(model: str, asked: dict[str, str | None]) -> tuple[bool, str, str]:
    """What would serve the model with its head, as vLLM's own config of both says."""
    from vllm.engine.arg_utils import EngineArgs

    from adaspec.vllm.plugin import register

    register()
    args = EngineArgs(model=model, speculative_config={"method": "adaspec", **asked})
    speculative: Any = args.create_engine_config().speculative_config
    options = getattr(speculative, OPTIONS_ATTRIBUTE)
    head = f"'{options.model}' as {speculative.method}" if options.model else "no head"
    found = (
        f"'{model}' with {head} is served by policy '{options.policy}' ({options.policy_why}) on "
        f"model runner {options.runner}, in drafts of at most {options.num_speculative_tokens}"
    )
    advice = "see that the policy is of this target" if options.doubts else ""
    return True, "; ".join((found, *options.doubts)), advice


if __name__ == "__main__":
    look(json.loads(sys.argv[1]))
