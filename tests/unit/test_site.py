"""README and docs make a site on which every link leads somewhere."""

from importlib.util import find_spec

import pytest
from checkout import CHECKOUT, need, run_python

need("docs")
if find_spec("material") is None or find_spec("latex2mathml") is None:
    pytest.skip("mkdocs-material is not installed: it comes with [dev]", allow_module_level=True)


def test_every_page_is_built_and_formulas_are_mathml(tmp_path):
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]
    run_python(*words, NO_MKDOCS_2_WARNING="1")
    pages = {page.stem for page in (CHECKOUT / "docs").glob("*.md")}
    assert pages == {page.parent.name for page in tmp_path.glob("*/index.html")}
    assert "<h1" in (tmp_path / "index.html").read_text("utf-8")
    decides = (tmp_path / "how-it-decides" / "index.html").read_text("utf-8")
    assert "<math" in decides
    assert "arithmatex" not in decides
