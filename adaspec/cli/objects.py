"""JSON objects as command-line options take them."""

from __future__ import annotations

import json
from typing import Any

import click


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
            found = json.loads(str(value))
        except ValueError as error:
            self.fail(f"'{value}' is not JSON ({error})", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"'{value}' is not a JSON object", param, ctx)
        return found
