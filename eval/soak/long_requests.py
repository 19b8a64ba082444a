"""Draws the requests of the long run: every kind of prompt, length and sampling there is."""

from dataclasses import dataclass, field

from tiny_models import document, ids_of

REGEX = r"(row\.update\((row|table|value), [0-9]\);\n){2}"
NEWLINE = ids_of("\n")[0]
TEXT = (3, 98)
"""Token ids that stand for characters."""


@dataclass(frozen=True)
class Asked:
    """One request: what is asked, when it comes, and whether its client gives up."""

    name: str
    prompt: list[int]
    params: dict
    arrives: int
    """Engine steps after its wave began."""
    abort_after: int | None = None
    """Engine steps after it came."""
    kinds: tuple[str, ...] = field(default=())

    @property
    def greedy(self):
        """Whether its output must be that without speculation."""
        return self.params["temperature"] == 0


class Draw:
    """Requests by seeded chance; prompts are shared and repeated as real traffic's are."""

    def __init__(self, rng, longest):
        self.rng, self.longest = rng, longest
        self.prefixes = [
            ids_of(document(int(rng.integers(1 << 30)), 5))[: longest // 3] for _ in range(4)
        ]
        self.asked = []

    def chance(self, probability):
        """True so often."""
        return bool(self.rng.random() < probability)

    def some(self, low, high):
        """A number from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def request(self, last_arrival):
        """The next request, which comes at some step up to the last arrival."""
        kind = str(self.rng.choice(list(_PROMPTS), p=list(_PROMPTS.values())))
        prompt = getattr(self, f"_{kind}")()[: self.longest - 2]
        kinds = [f"prompt: {kind}"]
        params = self._params(kinds, self.longest - len(prompt))
        abort_after = None
        if self.chance(0.06):
            kinds.append("aborted")
            abort_after = self.some(0, 20)
        found = Asked(
            name=f"r{len(self.asked)}",
            prompt=prompt,
            params=params,
            arrives=self.some(0, last_arrival),
            abort_after=abort_after,
            kinds=tuple(kinds),
        )
        self.asked.append(found)
        return found

    def _params(self, kinds, room):
        params = {"temperature": 0, "max_tokens": self.some(1, 56), "ignore_eos": self.chance(0.8)}
        if kinds[0] == "prompt: near":
            params["max_tokens"] = 64
        if params["max_tokens"] >= room:
            kinds.append("ends at max_model_len")
        if self.chance(0.2):
            kinds.append("sampled")
            params["temperature"] = float(self.rng.choice([0.3, 0.8, 1.3]))
            if self.chance(0.5):
                params["top_p"] = 0.9
            if self.chance(0.3):
                params["top_k"] = 12
            if self.chance(0.4):
                kinds.append("n > 1")
                params["n"] = self.some(2, 3)
        if self.chance(0.06):
            kinds.append("structured")
            params |= {"regex": REGEX, "max_tokens": 60}
        elif self.chance(0.1):
            kinds.append("stop token")
            params["stop_token_ids"] = [NEWLINE]
        elif self.chance(0.1):
            kinds.append("penalties")
            params |= {"repetition_penalty": 1.1, "presence_penalty": 0.2}
        elif self.chance(0.05):
            kinds.append("allowed tokens")
            params["allowed_token_ids"] = list(range(TEXT[0], TEXT[1] - 10))
        if self.chance(0.08):
            kinds.append("logprobs")
            params["logprobs"] = 2
        if self.chance(0.1):
            kinds.append("off")
            params["extra_args"] = {"adaspec": "off"}
        if "sampled" not in kinds:
            kinds.append("greedy")
        return params

    def _repetitive(self):
        return ids_of(document(self.some(0, 1 << 30), self.some(2, 7)))

    def _shared(self):
        prefix = self.prefixes[self.some(0, len(self.prefixes) - 1)]
        return prefix + ids_of(document(self.some(0, 1 << 30), 2))

    def _again(self):
        if not self.asked:
            return self._repetitive()
        return list(self.asked[self.some(0, len(self.asked) - 1)].prompt)

    def _random(self):
        return self.rng.integers(*TEXT, self.some(1, 80)).tolist()

    def _single(self):
        return [self.some(TEXT[0], TEXT[1] - 1)]

    def _near(self):
        text = ids_of(document(self.some(0, 1 << 30), 40))
        return text[: self.longest - self.some(2, 40)]


_PROMPTS = {
    "repetitive": 0.42,
    "shared": 0.2,
    "again": 0.12,
    "random": 0.12,
    "single": 0.06,
    "near": 0.08,
}


def sampling(params):
    """vLLM's own parameters."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    more = dict(params)
    regex = more.pop("regex", None)
    if regex is not None:
        more["structured_outputs"] = StructuredOutputsParams(regex=regex)
    return SamplingParams(**more)
