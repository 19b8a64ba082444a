"""`adaspec doctor`: say whether serving will work on this machine, and if not, why."""

from __future__ import annotations

from dataclasses import asdict

import click

from adaspec.cli.options import check_drafter, drafter_options, json_option
from adaspec.cli.output import print_json, say


@click.command("doctor")
@click.option("--policy", metavar="DIR|NAME|SPEC", help="Also say whether this policy can serve.")
@drafter_options(model_required=False)
@json_option
def command(
    policy: str | None,
    model: str | None,
    draft: str | None,
    draft_method: str | None,
    as_json: bool,
) -> None:
    """Import vLLM as a server would; look at it, the plug-in, the policy, the model and the head.

    Exit code 0 where it will work, 2 where it will not, with what to do; "warn" marks a doubt.
    It takes what importing vLLM takes, up to a minute.

    \b
    Example:
      adaspec doctor
      adaspec doctor --policy policies/mine --model M --draft EAGLE_HEAD
    """
    check_drafter(draft, draft_method)
    if draft is not None and model is None:
        raise click.UsageError(f"--draft {draft} drafts for a target: name it by --model")
    from adaspec.vllm.doctor import examine

    checks = examine(policy=policy, model=model, draft=draft, draft_method=draft_method)
    all_ok = all(check.ok for check in checks)
    if as_json:
        findings = [asdict(check) for check in checks]
        print_json({"schema": 2, "ok": all_ok, "findings": findings})
    else:
        for check in checks:
            mark = "not" if not check.ok else "warn" if check.advice else "ok"
            say(f"{mark:<4} {check.part}: {check.found}")
            if check.advice:
                say(f"     do: {check.advice}")
    if not all_ok:
        raise click.exceptions.Exit(2)
