"""A benchmark's report as GitHub markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from adaspec.bench.engine.paired import FEWEST_ROUNDS
from adaspec.bench.engine.report import complaint
from adaspec.bench.engine.words import HEADINGS, rounds, sentences, tables
from adaspec.evaluate.render.markdown import code


def page(report: Mapping[str, Any], plot: str) -> str:
    """The whole page; `plot` is where the picture lies."""
    return "\n".join(_lines(report, plot)) + "\n"


def _lines(report: Mapping[str, Any], plot: str) -> Iterator[str]:
    yield "# Engines side by side"
    yield ""
    yield (
        f"{code(report['model'])} with {code(report['drafter'] or 'no head')} in vLLM "
        f"{report['vllm']} on {report['hardware']}; {rounds(report)}, at "
        f"most {report['max_tokens']} tokens an answer, greedy, settings chosen under the costs "
        f"{code(report['cost'] or 'by default')}; engine arguments "
        f"{code(json.dumps(report['engine']))}."
    )
    yield ""
    yield (
        "`tok/s`: up to the moment when a slot stays empty. `over none`: of the same rounds; "
        "`spread`: its 95% interval over rounds drawn again, or of fewer than "
        f"{FEWEST_ROUNDS} rounds the worst and the best. `adaspec over it`: of the same rounds. "
        "`expected`: what the evaluator makes of those rounds. TTFT and ITL (the gap between two "
        "pieces of an answer): medians, ITL with its 95th percentile. `accepted`: drafted tokens "
        "per piece. `machine`: what a fixed read of memory took around a method's visits, over "
        "what it took around no speculation's: above 1 the machine itself was slower."
    )
    for title, rows in tables(report):
        yield from ("", f"## {title}", "")
        yield "| " + " | ".join(HEADINGS) + " |"
        yield "| :-- |" + " --: |" * (len(HEADINGS) - 1)
        for name, *figures in rows:
            yield "| " + " | ".join([code(name, in_table=True), *figures]) + " |"
    yield ""
    for sentence in sentences(report):
        yield f"- {sentence}"
    wrong = complaint(report)
    if wrong is not None:
        yield f"- **{wrong}**"
    yield from ("", f"![Throughput over no speculation]({plot})")
