"""Which blocks of the KV cache the drafter has not read: who is served from one does not hold it.

A prefix cache hands a request blocks that others have written. In a step in which the drafter does
not run, the target alone writes its part of them, and a draft that reads the other part is garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NULL = 0
"""The block that stands for none."""


class UnreadBlocks:
    """The blocks of an engine with a prefix cache, as its scheduler hands them out."""

    def __init__(self, block_sizes: Sequence[int], slack: int) -> None:
        """The sizes are those of the cache's groups, which share one pool of blocks.

        A step's positions are too far on by at most `slack` tokens: an async engine expects that
        all drafts in flight are accepted.
        """
        self.behind: set[str] = set()
        """The requests that began with an unread block, until they end."""
        self._sizes, self._slack = block_sizes, slack
        self._unread: set[int] = set()
        self._blocks: dict[str, list[list[int]]] = {}
        """By request and group."""
        self._last: Any = None
        """The last step, as it was scheduled."""

    def follow(self, scheduled: Any, drafter_ran: bool) -> None:
        """Take in a step that is to run; `drafter_ran`: whether it did in the step before."""
        if not drafter_ran and self._last is not None:
            self._forgo(self._last)
        self._last = scheduled if scheduled.total_num_scheduled_tokens else None
        for name in (*scheduled.finished_req_ids, *(scheduled.preempted_req_ids or ())):
            self._blocks.pop(name, None)
            self.behind.discard(name)
        for new in scheduled.scheduled_new_reqs:
            self._begin(new.req_id, new.block_ids, new.num_computed_tokens)
        running = scheduled.scheduled_cached_reqs
        columns = running.req_ids, running.new_block_ids, running.num_computed_tokens
        for name, blocks, known in zip(*columns, strict=True):
            if blocks is None:
                continue
            if name in running.resumed_req_ids:
                self._begin(name, blocks, known)
                continue
            for mine, more in zip(self._blocks[name], blocks, strict=True):
                mine += more
                self._unread.difference_update(more)

    def _begin(self, name: str, blocks: Sequence[Sequence[int]], known: int) -> None:
        """A request begins with these blocks, of which the first hold so many known tokens."""
        self._blocks[name] = [list(each) for each in blocks]
        self.behind.discard(name)
        for own, size in zip(self._blocks[name], self._sizes, strict=True):
            cached = -(-known // size)
            # What is written from its start on is read from its start on, or else unread again.
            self._unread.difference_update(own[cached:])
            if not self._unread.isdisjoint(own[:cached]):
                self.behind.add(name)

    def _forgo(self, step: Any) -> None:
        """In this step the drafter has not read what the target has."""
        running = step.scheduled_cached_reqs
        known = dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        known |= {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        for name, count in step.num_scheduled_tokens.items():
            first, end = max(known[name] - self._slack, 0), known[name] + count
            for own, size in zip(self._blocks.get(name, ()), self._sizes, strict=False):
                self._unread.update(own[first // size : -(-end // size)])
        self._unread.discard(_NULL)


def unread_blocks(cache_config: Any, kv_cache: Any, slack: int) -> UnreadBlocks | None:
    """The blocks of an engine by vLLM's config of its KV cache; None without a prefix cache."""
    if not cache_config.enable_prefix_caching:
        return None
    sizes = [each.kv_cache_spec.block_size for each in kv_cache.kv_cache_groups]
    return UnreadBlocks(sizes, slack)
