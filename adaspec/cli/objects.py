"""JSON objects as command-line options take them."""

from __future__ import annotations

from typing import Any

import click

from adaspec.documents import parse_json
from adaspec.errors import AdaspecError


class JsonObject(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "JSON"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """The object, or a usage error."""
        if isinstance(value, dict):
            return value
        try:
            found = parse_json(str(value), f"'{value}'", AdaspecError, "write it as JSON")
        except AdaspecError as error:
            self.fail(str(error), param, ctx)
        if not isinstance(found, dict):
            self.fail(f"'{value}' is not a JSON object", param, ctx)
        return found
