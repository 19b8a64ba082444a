"""Makes pages of README and docs for the site: `make site`, by mkdocs with `mkdocs.yml`.

README is the first page. Links that lead out of docs/ have no page: their text stays. Formulas
become MathML, which browsers show without a script.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add README as the first page."""
    text = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leave of a link that leads to no page its text alone."""

    def kept(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = target.partition("#")[0]
        leads = not path or "://" in target or files.get_file_from_path(path) is not None
        return link[0] if leads else text

    return _LINK.sub(kept, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Put MathML in the place of formulas."""

    def shown(formula: re.Match[str]) -> str:
        _, kind, text = formula.groups()
        return convert(html.unescape(text), display="inline" if kind == "(" else "block")

    return _FORMULA.sub(shown, content)
