"""Small random requests in which matches abound, as the replay and as the reference read them."""

import numpy as np
from hypothesis import strategies as st
from reference import Request

from adaspec.cost.model import CostModel
from adaspec.replay.recording import build_recording
from adaspec.trace.schema import CONFIDENCES
from adaspec.trace.schema import Request as Recorded

NEURAL_CAP = 5


def random_request(rng, *, tokens, neural_cap=NEURAL_CAP, alphabet=3, output_tokens=(2, 24)):
    """Any request; where drafted tokens are told, the accepted counts follow from them."""
    prompt = rng.integers(0, alphabet, rng.integers(1, 12)).tolist()
    output = rng.integers(0, alphabet, rng.integers(*output_tokens, endpoint=True)).tolist()
    hit = rng.uniform(0.2, 1.0)
    accepted, drafted = [0], [[-1] * neural_cap]
    for position in range(1, len(output)):
        right = 0
        while right < min(neural_cap, len(output) - position) and rng.random() < hit:
            right += 1
        draft = output[position : position + right]
        if right < neural_cap:
            truth = output[position + right] if position + right < len(output) else -9
            wrong = [token for token in range(alphabet + 1) if token != truth]
            draft = [*draft, int(rng.choice(wrong))]
        draft += rng.integers(0, alphabet, neural_cap - len(draft)).tolist()
        accepted.append(right)
        drafted.append(draft)
    probability = rng.uniform(0.01, 0.99, (len(output), neural_cap)).tolist()
    shown = (drafted, probability) if tokens else (None, None)
    return Request(prompt, output, accepted, *shown)


def recorded(request, name, workload="w", rng=None):
    """The request as a trace holds it; with `rng` it has confidences as well."""
    drafted = confidences = None
    if request.drafted is not None:
        drafted = np.array(request.drafted, np.int32)
        if rng is not None:
            shape = (*drafted.shape, len(CONFIDENCES))
            confidences = (-rng.exponential(1.0, shape)).astype(np.float32)
            if request.probability is not None:
                confidences[..., CONFIDENCES.index("logprob")] = np.log(request.probability)
            confidences[0] = np.nan
    counts = np.array(request.accepted, np.int16)
    counts[0] = -1
    return Recorded(
        workload=workload,
        id=name,
        prompt_tokens=np.array(request.prompt, np.int32),
        output_tokens=np.array(request.output, np.int32),
        neural_accepted=counts,
        drafted_tokens=drafted,
        confidences=confidences,
    )


def random_requests(seed, count, *, tokens, **kinds):
    rng = np.random.default_rng(seed)
    alphabet = int(rng.integers(1, 5))
    return [
        random_request(rng, tokens=tokens, **{"alphabet": alphabet, **kinds}) for _ in range(count)
    ]


def recording_of(requests, neural_cap=NEURAL_CAP, seed=None, ring=None):
    rng = None if seed is None else np.random.default_rng(seed)
    made = [recorded(request, str(at), rng=rng) for at, request in enumerate(requests)]
    return build_recording(made, neural_cap, ring)


def random_cost(rng):
    """Step costs of every kind: steep or flat, with captured sizes or without."""
    inside = np.unique(rng.integers(1, 40, rng.integers(0, 5)))
    largest = int(inside[-1]) if len(inside) else 0
    outside = largest + 1 + np.cumsum([0, *rng.integers(1, 20, 2)])
    tokens = [*inside.tolist(), *outside.tolist()]
    steepness = rng.choice([0.01, 0.2, 1.0])
    more = steepness * rng.uniform(0, 1, len(tokens)) * np.diff([0, *tokens])
    more[len(inside)] += rng.uniform(0, 5) * (largest > 0)
    times = {
        name: float(rng.uniform(0, most))
        for name, most in (
            ("context_s", 0.01),
            ("forward_s", 1),
            ("forward_per_row_s", 0.1),
            ("forward_context_s", 0.01),
            ("outside_graphs_s", 1),
            ("draft_prompt_s", 0.01),
            ("decide_s", 0.1),
            ("decide_per_row_s", 0.1),
        )
    }
    return CostModel(
        name="random",
        tokens=tuple(tokens),
        seconds=tuple((rng.uniform(0.1, 5) + np.cumsum(more)).tolist()),
        largest_graph=largest,
        **times,
    )


ONE_OF_EACH = (
    "none",
    "fixed:ngram:8:1",
    "fixed:neural:3",
    "hybrid:3:6:2",
    "hybrid-splice:2:8:3:1:5",
    "trtllm:3",
)
"""A rule of every static kind."""
RULES = (
    "none",
    "fixed:ngram:[1-9]:[1-4]",
    f"fixed:neural:[1-{NEURAL_CAP}]",
    f"hybrid:[1-6]:[1-9]:[0-{NEURAL_CAP}]",
    f"hybrid-splice:[1-6]:[1-9]:[1-{NEURAL_CAP}]:[1-5]:[1-6]",
    f"trtllm:[1-{NEURAL_CAP}]",
)


def static_specs():
    return st.one_of(st.from_regex(each, fullmatch=True) for each in RULES)
