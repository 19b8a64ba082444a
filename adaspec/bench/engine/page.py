"""A benchmark's report as GitHub markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from adaspec.bench.engine.paired import FEWEST_ROUNDS
from adaspec.bench.engine.report import complaint
from adaspec.bench.engine.words import rounds, sentences, tables
from adaspec.evaluate.render.markdown import table_markdown, text_markdown
from adaspec.evaluate.render.table import code


def page(report: Mapping[str, Any], plot: str) -> str:
    """The whole page; `plot` is where the picture lies."""
    return "\n\n".join(_parts(report, plot)) + "\n"


def _parts(report: Mapping[str, Any], plot: str) -> Iterator[str]:
    yield "# Engines side by side"
    yield text_markdown(
        [
            code(report["model"]),
            " with ",
            code(report["drafter"] or "no head"),
            f" in vLLM {report['vllm']} on {report['hardware']}; {rounds(report)}, at most "
            f"{report['max_tokens']} tokens an answer, greedy, settings chosen under the costs ",
            code(report["cost"] or "by default"),
            "; engine arguments ",
            code(json.dumps(report["engine"])),
            ".",
        ]
    )
    yield (
        "`tok/s`: up to the moment when a slot stays empty. `over none`: of the same rounds; "
        "`spread`: its 95% interval over rounds drawn again, or of fewer than "
        f"{FEWEST_ROUNDS} rounds the worst and the best. `adaspec over it`: of the same rounds. "
        "`expected`: what the evaluator makes of those rounds. TTFT and ITL (the gap between two "
        "pieces of an answer): medians, ITL with its 95th percentile. `accepted`: drafted tokens "
        "per piece. `machine`: what a fixed read of memory took around a method's visits, over "
        "what it took around no speculation's: above 1 the machine itself was slower."
    )
    for table in tables(report):
        yield table_markdown(table)
    lines = [f"- {sentence}" for sentence in sentences(report)]
    wrong = complaint(report)
    if wrong is not None:
        lines.append(f"- **{wrong}**")
    yield "\n".join(lines)
    yield f"![Throughput over no speculation]({plot})"
