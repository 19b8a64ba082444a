from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from random_recordings import random_requests, recording_of

from adaspec.predict.tables import NONE, find, level_keys, to_arrays
from adaspec.replay.recording import START, build_recording
from adaspec.train.rows import TableMaker

PARENTS = {1: 0, 2: 1, 4: 3, 5: 3, 6: 0}
SOURCE = (0, 0, 0, 1, 1, 1, 0)


def shorter(level, key):
    return key[:2] if level == 2 else key[1:] if level == 6 else key[:1]


def naive(*parts):
    """Base rates and depths; per (level, key) mean, positions and depth, rare keys left out."""
    seen: dict[tuple, list[tuple[object, int]]] = defaultdict(list)
    base: list[list[int]] = [[], []]
    for recording, index in [(each, r) for each, chosen in parts for r in np.flatnonzero(chosen)]:
        request, r = recording.requests[index], (id(recording), index)
        text = [*request.prompt_tokens.tolist(), *request.output_tokens.tolist()]
        prompt = len(request.prompt_tokens)
        for p in range(1, len(request.output_tokens)):
            at, i = prompt + p, int(recording.columns.offset[index]) + p
            start = int(recording.facts[START, i]) if recording.columns.match[i] else -1
            if recording.neural_cap:
                count = int(recording.columns.neural[i])
                base[0].append(count)
                for level in range(3):
                    if at > level:
                        key = tuple(text[at - 1 - back] for back in range(level + 1))
                        seen[(level, key)].append((r, count))
                if start >= 0:
                    seen[(6, (text[start], text[at - 1]))].append((r, count))
            if start >= 0:
                count = int(recording.columns.run[i])
                base[1].append(count)
                keys = {3: (text[start],), 4: (text[start], text[at - 1])}
                if start + 1 < at:
                    keys[5] = (text[start], text[start + 1])
                for level, key in keys.items():
                    seen[(level, key)].append((r, count))
    bases = [shrunk(counts, 0.0, 0.0, 0.0) for counts in base]
    found = {}
    for (level, key), rows in sorted(seen.items()):
        if len({r for r, _ in rows}) < 3:
            continue
        parent = bases[SOURCE[level]]
        if level in PARENTS:
            above = found[(PARENTS[level], shorter(level, key))]
            parent = above[0], above[2]
        counts = [count for _, count in rows]
        mean, depth = shrunk(counts, *parent, 5.0)
        found[(level, key)] = (mean, len(rows), depth)
    return [mean for mean, _ in bases] + [depth for _, depth in bases], found


def shrunk(counts, mean, depth, by):
    """Share of counts above 0, and mean log(1 + count) of those."""
    logs = [np.log1p(count) for count in counts if count]
    share = (len(logs) + by * mean) / (len(counts) + by) if len(counts) + by else 0.0
    return share, (sum(logs) + by * depth) / (len(logs) + by) if len(logs) + by else 0.0


@pytest.mark.parametrize("seed", range(12))
def test_tables_are_what_a_naive_count_over_their_requests_gives(seed):
    rng = np.random.default_rng(seed)
    recording = recording_of(random_requests(seed, 14, tokens=False), 0 if seed % 4 == 0 else 5)
    members = rng.random(len(recording)) < 0.7
    check(TableMaker(recording, seed).make(members), naive((recording, members)))


def test_texts_tell_of_copied_tokens_alone_unless_a_request_of_their_dialogue_is_left_out():
    recording = recording_of(random_requests(1, 8, tokens=False), 5)
    first, everyone = recording.requests[3], np.ones(len(recording), np.bool_)
    said = np.concatenate([first.prompt_tokens, first.output_tokens])
    others = recording_of(random_requests(2, 7, tokens=False)).requests
    texts = build_recording([replace(first, id="later", prompt_tokens=said), *others], 0)
    maker, known = TableMaker(recording, 0, texts), np.ones(8, np.bool_)
    tables = maker.make(everyone)
    check(tables, naive((recording, everyone), (texts, known)))
    alone = TableMaker(recording, 0).make(everyone)
    assert tables.base[0, 0] == alone.base[0, 0]
    assert tables.base[1, 0] != alone.base[1, 0]
    everyone[3] = known[0] = False
    check(maker.make(everyone), naive((recording, everyone), (texts, known)))
    keys = [to_arrays(TableMaker(recording, seed).make(everyone))["keys"] for seed in (0, 1)]
    assert not set(keys[0].tolist()) & set(keys[1].tolist()), "another seed salts them otherwise"


def check(tables, expected):
    bases, found = expected
    np.testing.assert_allclose(tables.base.T.ravel(), bases, rtol=1e-6)
    assert len(to_arrays(tables)["keys"]) == len(found)
    for (level, key), (mean, count, depth) in found.items():
        place, is_there = find(tables, level_keys(tables.salt, *told(level, key))[:, level])
        assert is_there.all()
        wanted = [mean, np.log1p(count), depth]
        assert tables.entries[place[0]].tolist() == pytest.approx(wanted, rel=1e-5)
    _, others = find(tables, np.arange(1, 4001, 2, np.uint64))
    assert not others.any()


def told(level, key):
    """The last tokens and the candidate that make a key of its level."""
    tail, candidate = [NONE] * 3, [NONE] * 2
    if level < 3:
        tail[3 - len(key) :] = key[::-1]
    elif level == 5:
        candidate = list(key)
    else:
        candidate[0] = key[0]
        tail[2] = key[1] if len(key) > 1 else NONE
    return np.array([tail], np.int32), np.array([candidate], np.int32)
