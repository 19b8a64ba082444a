"""The engines that a long run sends requests through."""

from dataclasses import dataclass

CHUNKED = {"max_num_batched_tokens": 48, "block_size": 32}
CACHED = {"enable_prefix_caching": True}
CRAMPED = {"num_gpu_blocks_override": 28, "block_size": 32, "enable_prefix_caching": False}
SHORT = {"max_model_len": 160}


@dataclass(frozen=True)
class Shape:
    """An engine that a share of the requests goes through."""

    name: str
    head: str | None
    arguments: dict
    trims: bool = True
    """On V2: whether drafts are trimmed on the device; else all are of one length."""

    @property
    def longest(self):
        """The most tokens that a request may have."""
        return self.arguments.get("max_model_len", 384)

    @property
    def target(self):
        """The folder of the model that is served."""
        return self.arguments.get("target", "target")
