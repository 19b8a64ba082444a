"""How scripts of this folder write a report: as JSON, with the command that made it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any


def write_report(
    folder: Path, script: str, document: dict[str, Any], said: list[str], table: list[str]
) -> None:
    """Write report.json with the command that this process was started by; print what it says."""
    command = shlex.join(["python", script, *sys.argv[1:]])
    folder.mkdir(parents=True, exist_ok=True)
    document = {**document, "command": command}
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    print("\n\n".join([*said, "\n".join(table)]))
