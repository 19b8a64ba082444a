"""A report as one page that opens without a network: `page.html`, filled in.

All that comes from traces or names is escaped, in the page by jinja2, in the figures' data so that
no character could end its script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from adaspec.documents import json_types
from adaspec.evaluate.options import ALL
from adaspec.evaluate.render.contents import Contents
from adaspec.evaluate.render.figures import Figure
from adaspec.evaluate.render.table import LOOKS, Kind, Text, plain, spans, unrepeated
from adaspec.evaluate.render.tables import MIX


def page(contents: Contents, figures: Sequence[Figure] = ()) -> str:
    """The page of a report; with figures it holds plotly's own bundle."""
    environment = Environment(
        loader=PackageLoader("adaspec.evaluate", "render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"text": text_html, "unrepeated": unrepeated, "zip": zip}
    data = {figure.name: {"by": figure.by, "drawn": figure.drawn} for figure in figures}
    return environment.get_template("page.html").render(
        contents=contents,
        figures=figures,
        names=[MIX if name == ALL else plain(name) for name in contents.workloads],
        looks=LOOKS,
        data=_script_json(data),
        plotly=Markup(get_plotlyjs() if figures else ""),
    )


def text_html(text: Text) -> Markup:
    """A text as HTML, escaped; adaspec's own words may have `code`, **stress** and *stress*."""
    parts = []
    for span in spans(text):
        part = escape(span.text)
        if span.kind is Kind.OWN:
            part = Markup(_OWN.sub(_tagged, part))
        elif span.kind is Kind.CODE:
            part = Markup("<code>{}</code>").format(part)
        marks = " ".join([*(mark.value for mark in span.marks), *["spare"][: span.spare]])
        parts.append(Markup('<span class="{}">{}</span>').format(marks, part) if marks else part)
    return Markup("").join(parts)


_OWN = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*")


def _tagged(found: re.Match[str]) -> str:
    tag = ("code", "strong", "em")[(found.lastindex or 1) - 1]
    return f"<{tag}>{found[found.lastindex or 1]}</{tag}>"


def _script_json(data: object) -> Markup:
    """Strict JSON that can stand in a script: no character of it could end that."""
    text = json.dumps(json_types(data), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
