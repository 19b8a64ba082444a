"""Single parts of the kernels, each beside the torch operations that say what it means."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import DEVICE, torch, triton

from adaspec.device.kernels.scan import find_match, scan
from adaspec.device.lookup import append, read_text
from adaspec.device.lookup import look_up as look_up_text

tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.slow

SPLITS = 2


@triton.jit
def _match(keys, slots, tokens, stride, known, drafts, room, depth, out, splits: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    drafted = drafts + row * room
    found = find_match(
        keys,
        row,
        tokens + slot * stride,
        tl.load(known + slot).to(tl.int64),
        drafted,
        tl.load(drafted + tl.maximum(depth - 1, 0)),
        depth,
        True,
        splits,
    )
    for field in tl.static_range(6):
        tl.store(out + row * 6 + field, found[field])


@pytest.mark.parametrize(("longest", "alphabet"), [(1, 2), (12, 2), (60, 1), (700, 3), (2500, 2)])
def test_the_scan_finds_the_match_in_the_text_and_behind_drafted_tokens(
    longest: int, alphabet: int
) -> None:
    rng = np.random.default_rng(longest)
    rows, room = 4, 5
    slots = torch.from_numpy(rng.permutation(rows + 2)[:rows]).to(DEVICE)
    # A span that comes again makes matches beyond the longest that count.
    tokens = rng.integers(0, alphabet, (rows + 2, longest + 3)).astype(np.int32)
    half = (longest + 3) // 2
    tokens[::2, half : 2 * half] = tokens[::2, :half]
    known = rng.integers(1, longest, rows + 2, endpoint=True).astype(np.int32)
    known[:2] = longest
    drafts = rng.integers(0, alphabet, (rows, room)).astype(np.int32)
    drafts[rng.random(drafts.shape) < 0.1] = -1
    tokens, known, drafts = (torch.from_numpy(x).to(DEVICE) for x in (tokens, known, drafts))
    keys = torch.zeros((rows, SPLITS * 8), dtype=torch.int32, device=DEVICE)
    out = torch.zeros((rows, 6), dtype=torch.int64, device=DEVICE)
    text = read_text(tokens, known, slots, room)
    for depth in range(room + 1):
        if depth:
            text = append(text, drafts[:, depth - 1].long())
        newest = drafts[:, max(depth - 1, 0)]
        scan[(rows, SPLITS)](
            tokens,
            tokens.stride(0),
            slots,
            known,
            drafts,
            drafts.stride(0),
            newest,
            newest.stride(0),
            depth,
            keys,
            behind_drafts=depth > 0,
            block_places=512,
        )
        _match[(rows,)](
            keys, slots, tokens, tokens.stride(0), known, drafts, room, depth, out, splits=SPLITS
        )
        wanted = torch.stack(look_up_text(text), 1)
        np.testing.assert_array_equal(out.cpu().numpy(), wanted.cpu().numpy())
