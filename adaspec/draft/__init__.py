"""Engine-free drafting: the incremental n-gram index and splicing."""

from adaspec.draft.index import (
    Matches,
    NgramIndex,
    accepted_runs,
    copied_run,
    match_positions,
    matches_behind_drafts,
    vllm_positions,
)

__all__ = [
    "Matches",
    "NgramIndex",
    "accepted_runs",
    "copied_run",
    "match_positions",
    "matches_behind_drafts",
    "vllm_positions",
]
