"""Numbers as command-line options take them."""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A number that is one: NaN passes every bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, or a usage error."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class WholeNumbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers separated by commas, ascending and each once."""

    name = "N,N,.."

    def __init__(self, most: int | None = None, kilo: bool = False) -> None:
        """Numbers from 1 to `most`; with `kilo`, `4k` is 4,096."""
        self._most, self._kilo = most, kilo

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, or a usage error that names the word that is none."""
        if isinstance(value, tuple):
            return value
        found = []
        for word in str(value).split(","):
            digits = word.strip().lower()
            factor = 1024 if self._kilo and digits.endswith("k") else 1
            number = digits.removesuffix("k") if self._kilo else digits
            if not number.isdecimal() or not self._fits(int(number) * factor):
                reach = "1 up" if self._most is None else f"1 to {self._most}"
                example = "1k,32k" if self._kilo else "1,8,32"
                self.fail(
                    f"'{word.strip()}' in '{value}' is not a whole number from {reach}; "
                    f"write for instance {example}",
                    param,
                    ctx,
                )
            found.append(int(number) * factor)
        return tuple(sorted(set(found)))

    def _fits(self, number: int) -> bool:
        return number >= 1 and (self._most is None or number <= self._most)
