"""Engine-free drafting: the incremental n-gram index and splicing."""
