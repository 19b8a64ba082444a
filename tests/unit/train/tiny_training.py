"""A training small enough for a test."""

from synthetic import Workload

from adaspec.cost.builtin import H100_LLAMA_3_1_8B
from adaspec.evaluate.options import Options
from adaspec.train.recipe import train_policy

TINY = (
    Workload("edits", (30, 60), (20, 50), 0.6, 12.0, 0.3, 0.8, 0.3),
    Workload("talk", (20, 40), (20, 50), 0.05, 5.0, 0.5, 0.75, 0.35),
)
OPTIONS = Options(engine="sync", concurrency=(1, 4), orders=1, resamples=2, jobs=1)


def train(trace, folder, options=OPTIONS, more_traces=(), **more):
    return train_policy([trace, *more_traces], folder, H100_LLAMA_3_1_8B, options, **more)
