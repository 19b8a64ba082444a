import types

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaspec.vllm.session.unread_blocks import UnreadBlocks

SIZE = 4


def scheduled_of(counts, names, blocks, known, new=(), finished=(), resumed=()):
    """vLLM's word of a step: tokens by request, and columns of those that ran before."""
    cached = types.SimpleNamespace(
        req_ids=names,
        new_block_ids=blocks,
        num_computed_tokens=known,
        resumed_req_ids=resumed,
    )
    return types.SimpleNamespace(
        total_num_scheduled_tokens=sum(counts.values()),
        num_scheduled_tokens=dict(counts),
        scheduled_new_reqs=new,
        scheduled_cached_reqs=cached,
        finished_req_ids=finished,
        preempted_req_ids=None,
    )


class Cache:
    """A scheduler with a prefix cache of one text, and a drafter whose KV is known token by token.

    Block b of the text is shared as soon as a request has filled it.
    """

    def __init__(self, slack):
        self.unread, self.slack = UnreadBlocks([SIZE], slack), slack
        self.read = {}  # by block, whether the drafter has read each of its tokens
        self.shared, self.free = {}, iter(range(1, 10_000))
        self.blocks, self.known, self.fresh, self.gone = {}, {}, {}, []
        self.ran = True

    def enter(self, name, at_most):
        cached = min(len(self.shared), at_most)
        self.blocks[name] = [self.shared[at] for at in range(cached)]
        self.known[name], self.fresh[name] = cached * SIZE, True
        return all(all(self.read[block]) for block in self.blocks[name])

    def step(self, counts, runs):
        """Every request reads so many tokens; the drafter reads them, too, where it `runs`."""
        new, running = [], ([], [], [])
        for name, count in counts.items():
            had = len(self.blocks[name])
            while len(self.blocks[name]) * SIZE < self.known[name] + count:
                self.blocks[name].append(next(self.free))
                self.read[self.blocks[name][-1]] = [False] * SIZE
            if self.fresh.pop(name, False):
                new.append(
                    types.SimpleNamespace(
                        req_id=name,
                        block_ids=(list(self.blocks[name]),),
                        num_computed_tokens=self.known[name],
                    )
                )
            else:
                added = self.blocks[name][had:]
                here = name, (added,) if added else None, self.known[name] + self.slack
                for column, value in zip(running, here, strict=True):
                    column.append(value)
        scheduled = scheduled_of(counts, *running, new=new, finished=self.gone)
        self.unread.follow(scheduled, self.ran)
        self.ran, self.gone = runs, []
        for name, count in counts.items():
            for at in range(self.known[name], self.known[name] + count):
                self.read[self.blocks[name][at // SIZE]][at % SIZE] = runs
            self.known[name] += count
            for at in range(self.known[name] // SIZE):
                self.shared.setdefault(at, self.blocks[name][at])

    def end(self, name):
        self.gone.append(name)
        del self.blocks[name], self.known[name]


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 3]))
def test_it_is_known_of_every_request_whether_the_drafter_has_read_its_cached_blocks(seed, slack):
    draw, cache, whole = np.random.default_rng(seed), Cache(slack), {}
    for number in range(40):
        if len(cache.known) < 3 and draw.random() < 0.4:
            name = f"r{number}"
            whole[name] = cache.enter(name, int(draw.integers(0, 6)))
        if cache.known and draw.random() < 0.2:
            cache.end(str(draw.choice([*cache.known])))
        counts = {name: int(draw.integers(1, 7)) for name in cache.known}
        if counts:
            cache.step(counts, bool(draw.random() < 0.6))
        for name in cache.known:
            if not whole[name]:
                assert name in cache.unread.behind
            elif slack == 0:
                assert name not in cache.unread.behind


def test_a_request_that_is_let_in_anew_is_known_by_its_blocks_of_then():
    unread = UnreadBlocks([SIZE], 0)

    def step(known, blocks, drafter_ran, resumed=()):
        scheduled = scheduled_of({"one": 4}, ["one"], [blocks], [known], resumed=resumed)
        unread.follow(scheduled, drafter_ran)

    step(0, ([1],), drafter_ran=True, resumed={"one"})
    step(4, ([2],), drafter_ran=False)  # block 1 was not read
    step(8, ([1, 3, 4],), drafter_ran=True, resumed={"one"})
    assert unread.behind == {"one"}
    step(4, ([5, 3],), drafter_ran=True, resumed={"one"})
    assert not unread.behind
