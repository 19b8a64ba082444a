"""README and docs make a site on which every link leads somewhere."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

if find_spec("material") is None or find_spec("latex2mathml") is None:
    pytest.skip("mkdocs-material is not installed: it comes with [dev]", allow_module_level=True)
if not (CHECKOUT / "mkdocs.yml").exists():
    pytest.skip("needs docs/, which a source distribution leaves out", allow_module_level=True)


def test_every_page_is_built_and_formulas_are_mathml(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=CHECKOUT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.stem for page in (CHECKOUT / "docs").glob("*.md")}
    assert pages == {page.parent.name for page in tmp_path.glob("*/index.html")}
    assert "<h1" in (tmp_path / "index.html").read_text("utf-8")
    decides = (tmp_path / "how-it-decides" / "index.html").read_text("utf-8")
    assert "<math" in decides
    assert "arithmatex" not in decides
