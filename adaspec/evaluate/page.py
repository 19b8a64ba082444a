"""Tables and figures as one page that opens without a network: `page.html`, filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from adaspec.evaluate.plain_table import Section, Table


def page(
    title: str,
    sections: Sequence[Section],
    settings: Table | None = None,
    notes: Sequence[str] = (),
    command: str = "",
) -> str:
    """The page of these sections; with a figure it holds plotly's own bundle."""
    environment = Environment(
        loader=PackageLoader("adaspec", "evaluate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [
        {
            said: _drawn(figure, f"figure-{at}-{number}")
            for number, (said, figure) in enumerate(some)
        }
        for at, some in enumerate(section.figures.items() for section in sections)
    ]
    return environment.get_template("page.html").render(
        title=title,
        sections=list(zip(sections, figures, strict=True)),
        settings=settings,
        notes=notes,
        command=command,
        plotly=Markup(get_plotlyjs() if any(figures) else ""),
    )


def _drawn(figure: Mapping[str, Any], name: str) -> Markup:
    config = {"displayModeBar": False}
    parts = {"include_plotlyjs": False, "full_html": False, "validate": False}
    return Markup(to_html(figure, config, div_id=f"figure-{name}", **parts))
