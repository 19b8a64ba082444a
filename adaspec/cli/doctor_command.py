"""`adaspec doctor`: will serving work here, and if not why."""

from __future__ import annotations

import click
from rich.markup import escape

from adaspec.cli.options import check_drafter, draft_method_option, json_option
from adaspec.cli.output import print_json, printable, results


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

    Exit code 0 where all is well, 2 where something is not, with what to do.

    \b
    Example:
      adaspec doctor
      adaspec doctor --policy policies/mine --model M --draft EAGLE_HEAD
    """
    check_drafter(draft, draft_method)
    # Imported here: torch and vLLM take seconds to load, --help should not.
    from adaspec.vllm.doctor import examine, gpu_caveat

    found = examine(policy, model, draft, draft_method)
    caveat = gpu_caveat()
    well = all(each.ok for each in found)
    if as_json:
        findings = [
            {"part": each.part, "ok": each.ok, "found": each.found, "advice": each.advice}
            for each in found
        ]
        print_json({"schema": 1, "ok": well, "findings": findings, "caveat": caveat})
    else:
        console = results()
        for each in found:
            mark = "[green]ok[/green]  " if each.ok else "[red]not[/red] "
            console.print(f"{mark}{each.part}: {escape(printable(each.found))}", soft_wrap=True)
            if not each.ok:
                console.print(f"      do: {escape(printable(each.advice))}", soft_wrap=True)
        if caveat:
            console.print(f"note  {escape(caveat)}", soft_wrap=True)
    if not well:
        raise click.exceptions.Exit(2)
