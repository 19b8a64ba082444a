import re

import numpy as np
from checkout import CHECKOUT, need

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.cost.model import target_s
from adaspec.policy.budget import best_budget, keep_likeliest, ranked

OFFERED = {
    "A": [0.90, 0.86, 0.82, 0.79, 0.76, 0.73, 0.70, 0.68],
    "B": [0.93, 0.74, 0.56, 0.42],
    "C": [0.20],
}
CASES = ((0, 860), (490, 860), (502, 860), (502, 300))
"""Prompt tokens beside, and the rate."""
COSTS = H100_LLAMA_3_1_8B.constants()
ROWS = len(OFFERED)


def test_every_number_of_the_page_is_computed():
    need("docs")
    page = (CHECKOUT / "docs" / "how-it-decides.md").read_text(encoding="utf-8")
    section = page.partition("## A worked example")[2]
    rows = [[name, ", ".join(f"{s:.2f}" for s in offered)] for name, offered in OFFERED.items()]
    lengths = np.array([len(offered) for offered in OFFERED.values()])
    survival = np.zeros((ROWS, lengths.max()))
    for row, each in enumerate(OFFERED.values()):
        survival[row, : len(each)] = each
    offered = ranked(survival, lengths)
    for budget in (0, 5, 7, 12, 13):
        accepted = offered[:budget].sum()
        worth = [
            ROWS + accepted - rate * target_s(COSTS, ROWS + prompt + budget)
            for prompt, rate in CASES
        ]
        rows.append([str(budget), f"{accepted:.2f}", *(f"{value:.2f}" for value in worth)])
    lines = [line for line in section.splitlines() if re.match(r"\| (\d+|[ABC]) \|", line)]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == rows
    found = [best_budget(COSTS, rate, ROWS + prompt, offered, 1.0) for prompt, rate in CASES[:3]]
    assert found == [13, 13, 7]
    price = keep_likeliest(offered, survival, lengths, 7)
    assert f"the last of them, {price:.2f}." in " ".join(section.split())
