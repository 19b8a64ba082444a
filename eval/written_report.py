"""How scripts of this folder write a report: as JSON, and as Markdown."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any


def write_report(
    folder: Path, script: str, document: dict[str, Any], said: list[str], table: list[str]
) -> None:
    """Write report.json and report.md, both with the command that this process was started by."""
    command = shlex.join(["python", script, *sys.argv[1:]])
    folder.mkdir(parents=True, exist_ok=True)
    document = {**document, "command": command}
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    text = "\n\n".join([*said, "\n".join(table), f"Made by:\n\n```sh\n{command}\n```"])
    (folder / "report.md").write_text(text + "\n")
