"""Draw the picture and write the tables of README and docs from the committed reports.

    python eval/summary.py            # writes what has changed
    python eval/summary.py --check    # writes nothing; exit code 1 where a table is out of date

Reads the reports in `eval/reports/`; writes `eval/reports/summary.json`, `docs/headline.png`, and
the tables between `<!-- table NAME -->` and `<!-- end -->` in README.md, docs/ and the README.md of
reports.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from figures import CHECKOUT, REPLAYS, REPORTS, summary
from gpu_tables import GPU_REQUESTS, gpu_speeds
from judged_tables import ACROSS_MODELS, leads_over_eagle
from tables import tables

SUMMARY = REPORTS / "summary.json"
PICTURE = CHECKOUT / "docs" / "headline.png"
TABLE = re.compile(r"(<!-- table ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def draw(found: dict[str, Any], path: Path) -> None:
    """The README's picture: speedup over no speculation by load, one panel per pair of models."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.9), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(REPLAYS), sharey=True)
    hindsight = "in hindsight"
    lines = (
        ("foresight", "foresight (ignores CUDA graph sizes)", "#8A8A8A", "--", "", 1.2),
        ("", "adaspec, on requests never seen", "#C8390E", "-", "o", 2.4),
        (
            "static_best",
            f"best static rule (copy, else EAGLE), {hindsight}",
            "#1F262E",
            "-",
            "s",
            1.6,
        ),
        ("vllm_best", f"best of vLLM's own methods, {hindsight}", "#0B5FA5", "-", "^", 1.6),
    )
    for axes, (name, models) in zip(panels, REPLAYS.items(), strict=True):
        rows = found["replays"][name]
        loads = [row["concurrency"] for row in rows]
        for key, label, colour, style, marker, width in lines:
            values = [row[f"{key}_speedup".lstrip("_")] for row in rows]
            axes.plot(
                loads, values, style, color=colour, marker=marker, lw=width, ms=5, label=label
            )
        axes.axhline(1, color="#444444", lw=1, label="no speculation")
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [str(load) for load in loads])
        if name == GPU_REQUESTS:
            ours, eagle = zip(*gpu_speeds().values(), strict=True)
            for speeds, marker, colour, what in (
                (ours, "D", "#C8390E", "an older policy"),
                (eagle, "v", "#0B5FA5", "vLLM's EAGLE-3"),
            ):
                label = f"{what}, measured on an H100"
                axes.plot(list(gpu_speeds()), speeds, marker, color=colour, mfc="none", label=label)
        axes.set_title(models.replace(", ", "\n"), fontsize=9.5, loc="left")
        axes.set_xlabel("requests running at once (logarithmic)", fontsize=9)
        axes.grid(axis="y", color="#DDDDDD", lw=0.8)
        axes.tick_params(labelsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("speedup over no speculation", fontsize=9)
    panels[0].set_ylim(bottom=0.85)
    figure.suptitle(
        "Replays of recorded requests, each step as long as Llama-3.1-8B takes on an H100",
        fontsize=11,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    """Write the files that have changed, or with --check only name them."""
    parser = argparse.ArgumentParser(description="README's and docs' figures from the reports.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    check = parser.parse_args().check
    figures = summary() | {"over_eagle": {name: leads_over_eagle(name) for name in ACROSS_MODELS}}
    markdown_tables = tables(figures)
    text = json.dumps(figures, indent=1) + "\n"
    changed = {SUMMARY: text} if not SUMMARY.exists() or SUMMARY.read_text("utf-8") != text else {}
    pages = (CHECKOUT / "docs").glob("*.md"), REPORTS.glob("*/README.md")
    for page in (CHECKOUT / "README.md", *sorted(chain(*pages))):
        before = page.read_text("utf-8")
        after = TABLE.sub(lambda hit: hit[1] + markdown_tables[hit[2]] + hit[3], before)
        if after != before:
            changed[page] = after
    for page, text in changed.items():
        print(f"{page.relative_to(CHECKOUT)}: {'out of date' if check else 'written'}")
        if not check:
            page.write_text(text, "utf-8")
    if check:
        return 1 if changed else 0
    draw(figures, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
