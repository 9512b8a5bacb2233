"""Prefix reuse: from cached tokens, from counters, from block hashes."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.trace.tables import Tables, from_rows
from sojourn.workload.prefix import Blocks, reuse

BLOCK = 10


def hashed(*chains):
    calls = [
        {"call_id": f"c{i}", "request_id": "r", "arrival_s": float(i), "block_hashes": list(chain),
         "block_tokens": BLOCK, "input_tokens": BLOCK * len(chain)}
        for i, chain in enumerate(chains)
    ]  # fmt: skip
    return from_rows("calls", calls)


def test_only_the_leading_run_is_reuse():
    # 1 2 3 | 1 2 9 (two known) | 8 2 3 (none: its first differs)
    blocks = Blocks.of(hashed([1, 2, 3], [1, 2, 9], [8, 2, 3]))
    assert blocks is not None
    assert blocks.ideal() == pytest.approx(2 / 9)


def test_a_block_twice_in_one_call_is_no_reuse():
    blocks = Blocks.of(hashed([5, 5], [7, 7]))
    assert blocks is not None
    assert blocks.ideal() == 0


def test_hashes_beyond_the_signed_range_are_kept_apart():
    """64-bit hashes are stored in two's complement; float64 would merge these."""
    one, two = np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64).view(np.int64).tolist()
    blocks = Blocks.of(hashed([one], [two], [one]))
    assert blocks is not None
    assert blocks.ideal() == pytest.approx(1 / 3)
    assert len(set(blocks.ids.tolist())) == 2


def chains():
    """Prefix chains: a block's number tells all blocks before it, as a hash does."""
    choice = st.lists(st.integers(0, 2), min_size=1, max_size=6)
    return st.lists(choice, min_size=1, max_size=25).map(
        lambda many: [[hash_of(c[: k + 1]) for k in range(len(c))] for c in many]
    )


def hash_of(prefix):
    number = 1
    for digit in prefix:
        number = number * 3 + digit
    return number


def plain_lru(many, capacity):
    cache: OrderedDict = OrderedDict()
    hit = 0
    for chain in many:
        for block in chain:
            if block not in cache:
                break
            hit += 1
        for block in reversed(chain):
            cache.pop(block, None)
            cache[block] = True
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hit / sum(len(chain) for chain in many)


@settings(deadline=None)
@given(chains(), st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_larger_caches_hit_more_up_to_the_ideal(many, capacities):
    blocks = Blocks.of(hashed(*many))
    assert blocks is not None
    sizes = tuple(sorted({c * BLOCK for c in capacities}))
    found = blocks.by_cache_tokens(sizes)
    shares = [found[str(size)] for size in sizes]
    assert shares == sorted(shares)
    assert shares[-1] <= blocks.ideal() + 1e-12
    assert shares == pytest.approx([plain_lru(many, size // BLOCK) for size in sizes])
    assert blocks.by_cache_tokens((10**9,))[str(10**9)] == pytest.approx(blocks.ideal())


def samples(*rows):
    names = ("t_s", "replica", "prefix_hit_tokens_total", "prefix_query_tokens_total")
    return from_rows("engine_samples", [dict(zip(names, row, strict=True)) for row in rows])


def test_counters_by_replica_and_through_a_restart():
    table = samples(
        (0, "a", 100, 1000), (10, "a", 400, 2000), (20, "a", 50, 100),  # restarted before 20 s
        (0, "b", 0, 0), (10, "b", 10, 500),
    )  # fmt: skip
    found = reuse(Tables.of({"engine_samples": table}), Config())
    assert found is not None
    assert found.provenance == Provenance.MEASURED
    assert found.hit_share == pytest.approx((300 + 50 + 10) / (1000 + 100 + 500))


def test_cached_tokens_win_over_counters():
    calls = [
        {
            "call_id": f"c{i}",
            "request_id": "r",
            "arrival_s": float(i),
            "input_tokens": asked,
            "cached_tokens": cached,
        }
        for i, (asked, cached) in enumerate(((100, 25), (300, None), (100, 0)))
    ]
    counters = samples((0, "a", 0, 0), (1, "a", 9, 9))
    tables = {"calls": from_rows("calls", calls), "engine_samples": counters}
    found = reuse(Tables.of(tables), Config())
    assert found is not None
    assert found.hit_share == pytest.approx(25 / 200)


def test_nothing_told_nothing_said():
    assert reuse(Tables(), Config()) is None
    calls = pa.table({"call_id": ["a"], "request_id": ["r"], "arrival_s": [0.0]})
    assert (
        reuse(Tables.of({"calls": calls, "engine_samples": samples((0, "a", 1, 1))}), Config())
        is None
    )
