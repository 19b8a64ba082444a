"""A training small enough for a test."""

from dataclasses import replace

import numpy as np
from synthetic import TINY as TINY

from adaspec.cost.load import H100_LLAMA_3_1_8B
from adaspec.evaluate.options import Options
from adaspec.train.recipe import train_policy

OPTIONS = Options(engine="sync", concurrency=(1, 4), orders=1, resamples=2, jobs=1)


def train(trace, folder, options=OPTIONS, more_traces=(), **more):
    return train_policy([trace, *more_traces], folder, H100_LLAMA_3_1_8B, options, **more)


def later_turn(request, number=0):
    """A request whose prompt is another's prompt and answer, and a question."""
    prompt = [request.prompt_tokens, request.output_tokens, np.array([number], np.int32)]
    return replace(request, id=f"{request.id} later {number}", prompt_tokens=np.concatenate(prompt))
