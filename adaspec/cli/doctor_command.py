"""`adaspec doctor`: say whether serving will work on this machine, and if not, why."""

from __future__ import annotations

from dataclasses import asdict

import click

from adaspec.cli.options import check_drafter, draft_method_option, json_option
from adaspec.cli.output import print_json, say


@click.command("doctor")
@click.option("--policy", metavar="DIR|NAME|SPEC", help="Also say whether this policy can serve.")
@click.option(
    "--model", metavar="M", help="Also say whether this target can be served, and by what policy."
)
@click.option("--draft", metavar="HEAD", help="Also say what this head is and whether it fits.")
@draft_method_option
@json_option()
def command(
    policy: str | None,
    model: str | None,
    draft: str | None,
    draft_method: str | None,
    as_json: bool,
) -> None:
    """Look at Python, torch, vLLM, the plug-in, its patches, the policy, the model and the head.

    Exit code 0 where all is well, 2 where something is not, with what to do; "warn" says what
    could not be compared. vLLM is not imported: its source is read.

    \b
    Example:
      adaspec doctor
      adaspec doctor --policy policies/mine --model M --draft EAGLE_HEAD
    """
    check_drafter(draft, draft_method)
    # Imported here because torch and vLLM take seconds to load, and --help should be quick.
    from adaspec.vllm.doctor import examine, gpu_caveat

    checks = examine(policy, model, draft, draft_method)
    caveat = gpu_caveat()
    all_ok = all(check.ok for check in checks)
    if as_json:
        findings = [asdict(check) for check in checks]
        print_json({"schema": 1, "ok": all_ok, "findings": findings, "caveat": caveat})
    else:
        for check in checks:
            mark = "warn" if check.warn else "ok" if check.ok else "not"
            say(f"{mark:<4} {check.part}: {check.found}")
            if check.advice:
                say(f"     do: {check.advice}")
        if caveat:
            say(f"note {caveat}")
    if not all_ok:
        raise click.exceptions.Exit(2)
