"""The tables of reports that judge policies: across models, on Spec-Bench, with memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from figures import REPLAYS, is_mixed, report
from table_cells import (
    AT_ONCE,
    OVER_NONE,
    OVER_STATIC,
    OVER_VLLM,
    joined,
    percent,
    times,
    with_interval,
    without_repeats,
)

LLAMA, PAIR = "Llama-3.1-8B-Instruct", "SmolLM2-135M-Instruct"
ACROSS_MODELS = {
    "general-on-llama-3.1-8b": (
        LLAMA,
        {
            "general-of-reference-pair": "the other set alone",
            "general": "both sets",
            "llama-3.1-8b-instruct-h100": "this set, with its tokens",
        },
    ),
    "general-on-reference-pair": (
        PAIR,
        {
            "general-of-llama": "the other set alone",
            "general": "both sets",
            "reference-pair-h100": "this set, with its tokens",
        },
    ),
}
"""Report -> the recordings that it judges on, and its policies -> what they were trained on."""
BESIDE = dict(zip(REPLAYS, ACROSS_MODELS, strict=True))
"""Cross-fitted report -> the report of the same recordings that judges across models."""
EAGLE = "fixed:neural:3"
OVER_EAGLE = "over EAGLE with 3 tokens"
WORKLOADS = {
    "cnn": "summaries",
    "gsm8k": "mathematics",
    "humaneval": "code",
    "instructcoder": "code edits",
    "mt_bench": "chat in turns",
    "sharegpt": "chat",
}
"""What the workloads of the recordings are."""
SPEC_BENCH = "spec-bench"
ON_SPEC_BENCH = {"reference-pair-h100": "that of this pair", "general": "`general`"}
"""The policies that the report of Spec-Bench judges -> what they are."""
SUFFIX = "suffix"
BESIDE_SUFFIX = {LLAMA: "llama-3.1-8b", PAIR: "reference-pair"}
"""Recordings -> what their two reports are called by: in one of them a server begins without the
answers of others (cold), in the other with some (warm)."""


class _Judged(NamedTuple):
    """What a report says of its policies on the mix, by policy and load."""

    speeds: dict[tuple[str, int], float]
    """Over no speculation."""
    leads: dict[tuple[str, int], dict[str, Any]]

    @classmethod
    def by(cls, name: str) -> _Judged:
        """A committed report."""
        found = report(name)
        return cls(
            {_cell(row): row["speedup"] for row in filter(is_mixed, found["rows"])},
            {_cell(row): row for row in filter(is_mixed, found["headline"])},
        )

    @property
    def loads(self) -> list[int]:
        """Requests at once."""
        return sorted({load for _, load in self.leads})


def across_models_table() -> list[list[str]]:
    """What policies that do not know a model gain there, beside those that do."""
    loads = " / ".join(map(str, _Judged.by(next(iter(ACROSS_MODELS))).loads))
    heads = ["judged on", "trained on", f"{OVER_NONE}, at {loads} {AT_ONCE}", OVER_VLLM]
    return without_repeats([[*heads, OVER_EAGLE, OVER_STATIC], *_across_models()])


def _across_models() -> Iterator[list[str]]:
    for name, (models, policies) in ACROSS_MODELS.items():
        speeds, leads = judged = _Judged.by(name)
        for policy, trained_on in policies.items():
            cells = [(policy, load) for load in judged.loads]
            lifts = [
                [leads[cell]["lift_over_vllm_best"] for cell in cells],
                [speeds[cell] / speeds[EAGLE, cell[1]] - 1 for cell in cells],
                [leads[cell]["lift_over_static_best"] for cell in cells],
            ]
            yield [
                f"[{models}](../eval/reports/{name}/report.json)",
                trained_on,
                joined([times(speeds[cell]) for cell in cells]),
                *(joined([percent(lift) for lift in each]) for each in lifts),
            ]


def workloads_table() -> list[list[str]]:
    """What a policy that was made for another model gains on each workload alone."""
    loads = " / ".join(map(str, _Judged.by(next(iter(ACROSS_MODELS))).loads))
    rows = [["recordings", "workload", f"{OVER_NONE}, at {loads} {AT_ONCE}", OVER_VLLM]]
    rows[0].append(OVER_EAGLE)
    for name, (models, policies) in ACROSS_MODELS.items():
        found, policy = report(name), next(iter(policies))
        speeds = {(row["workload"], *_cell(row)): row["speedup"] for row in found["rows"]}
        leads = [lead for lead in found["headline"] if lead["policy"] == policy]
        for workload in sorted({lead["workload"] for lead in leads if not is_mixed(lead)}):
            own = [lead for lead in leads if lead["workload"] == workload]
            over_eagle = leads_over_eagle(name)[workload].values()
            rows.append([
                f"[{models}](../eval/reports/{name}/report.json)",
                WORKLOADS[workload],
                joined([times(speeds[workload, *_cell(lead)]) for lead in own]),
                joined([percent(lead["lift_over_vllm_best"]) for lead in own]),
                joined(list(map(percent, over_eagle))),
            ])  # fmt: skip
    return without_repeats(rows)


def leads_over_eagle(name: str) -> dict[str, dict[int, float]]:
    """By workload and load, the lead over EAGLE of a policy that was made for another model."""
    found, policy = report(name), next(iter(ACROSS_MODELS[name][1]))
    speeds = {(row["workload"], *_cell(row)): row["speedup"] for row in found["rows"]}
    leads: dict[str, dict[int, float]] = {}
    for workload, each, load in speeds:
        if each == policy and workload in WORKLOADS:
            lead = speeds[workload, policy, load] / speeds[workload, EAGLE, load] - 1
            leads.setdefault(workload, {})[load] = lead
    return leads


def without_training(replayed: str) -> dict[int, float]:
    """By load, the lead of a policy that was made for another model over vLLM's own methods.

    On the recordings of a cross-fitted report.
    """
    name = BESIDE[replayed]
    judged, other = _Judged.by(name), next(iter(ACROSS_MODELS[name][1]))
    return {load: judged.leads[other, load]["lift_over_vllm_best"] for load in judged.loads}


def spec_bench_table() -> list[list[str]]:
    """What policies gain on a public test that no policy was trained on."""
    speeds, leads = judged = _Judged.by(SPEC_BENCH)
    first, other = ON_SPEC_BENCH
    heads = [AT_ONCE, OVER_NONE, OVER_VLLM, OVER_STATIC]
    rows = [[*heads, f"{ON_SPEC_BENCH[other]} {OVER_VLLM}"]]
    for load in judged.loads:
        lead, other_lead = (leads[policy, load] for policy in (first, other))
        rows.append([
            str(load),
            times(speeds[first, load]),
            with_interval(lead, "lift_over_vllm_best", "lift_over_vllm_best_ci95"),
            with_interval(lead, "lift_over_static_best", "lift_ci95"),
            with_interval(other_lead, "lift_over_vllm_best", "lift_over_vllm_best_ci95"),
        ])  # fmt: skip
    return rows


def spec_bench_kinds_table() -> list[list[str]]:
    """The same for each kind of its questions by itself."""
    found = report(SPEC_BENCH)
    speeds = {(row["workload"], *_cell(row)): row["speedup"] for row in found["rows"]}
    loads = " / ".join(map(str, sorted({lead["concurrency"] for lead in found["headline"]})))
    rows = [["questions", f"{OVER_NONE}, at {loads} {AT_ONCE}"]]
    first, other = ON_SPEC_BENCH
    rows[0] += [OVER_VLLM, OVER_STATIC, f"{ON_SPEC_BENCH[other]} {OVER_VLLM}"]
    for workload in sorted({lead["workload"] for lead in found["headline"] if not is_mixed(lead)}):
        own, others = (
            [
                lead
                for lead in found["headline"]
                if (lead["workload"], lead["policy"]) == (workload, policy)
            ]
            for policy in (first, other)
        )
        columns = [
            [times(speeds[(workload, *_cell(lead))]) for lead in own],
            [percent(lead["lift_over_vllm_best"]) for lead in own],
            [percent(lead["lift_over_static_best"]) for lead in own],
            [percent(lead["lift_over_vllm_best"]) for lead in others],
        ]
        rows.append([workload.replace("-", " "), *map(joined, columns)])
    return rows


def suffix_table() -> list[list[str]]:
    """Policies without and with a ring, beside suffix decoding."""
    rows = [["recordings", AT_ONCE, "suffix decoding", "adaspec over it"]]
    rows[0] += ["suffix decoding, warm", "adaspec over it, warm"]
    for models, name in BESIDE_SUFFIX.items():
        cold, warm = (_Judged.by(f"suffix-{each}-{name}") for each in ("cold", "warm"))
        for load in cold.loads:
            rows.append([models, str(load)])
            for judged in (cold, warm):
                (lead,) = (
                    each
                    for (policy, at), each in judged.leads.items()
                    if at == load and policy != SUFFIX
                )
                rows[-1] += [
                    times(judged.speeds[SUFFIX, load]),
                    with_interval(lead, "lift_over_suffix", "lift_over_suffix_ci95"),
                ]
    return without_repeats(rows)


def _cell(row: dict[str, Any]) -> tuple[str, int]:
    return row["policy"], row["concurrency"]
