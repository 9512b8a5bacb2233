"""Prefix reuse: measured where cached tokens or engine counters tell, else computed from blocks."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.config import Config
from sojourn.interval import Provenance
from sojourn.trace.arrays import Floats, Ints, floats
from sojourn.trace.tables import Tables
from sojourn.workload.profile_records import PrefixReuse

CACHE_SIZES_TOKENS: Final = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
"""From about what one mid-size GPU keeps beside its weights to a host-memory tier of a node."""
MAX_ACCESSES: Final = 2_000_000
"""Block look-ups replayed through an LRU cache per size; a longer trace is replayed up to here
(a stretch of real order keeps reuse distances; a sample of requests would not)."""


def reuse(tables: Tables, config: Config) -> PrefixReuse | None:
    """Prefix reuse of the traffic, or None where nothing tells."""
    calls = tables.calls
    blocks = Blocks.of(calls) if calls.num_rows else None
    ideal = None if blocks is None else blocks.ideal()
    by_size = {} if blocks is None else blocks.by_cache_tokens(_sizes(config))
    share = _from_calls(calls)
    if share is None:
        share = _from_counters(tables.engine_samples)
    if share is not None:
        return PrefixReuse(
            hit_share=share, provenance=Provenance.MEASURED, by_cache_tokens=by_size, ideal=ideal
        )
    if ideal is None:
        return None
    own = str(_deployed_tokens(config) or "")
    return PrefixReuse(
        hit_share=by_size.get(own, ideal),
        provenance=Provenance.INFERRED,
        by_cache_tokens=by_size,
        ideal=ideal,
    )


def _deployed_tokens(config: Config) -> int | None:
    deployment = config.deployment
    return None if deployment.kv_blocks is None else deployment.kv_blocks * deployment.block_size


def _sizes(config: Config) -> tuple[int, ...]:
    own = _deployed_tokens(config)
    return CACHE_SIZES_TOKENS if own is None else tuple(sorted({*CACHE_SIZES_TOKENS, own}))


def _from_calls(calls: pa.Table) -> float | None:
    """Cached over prompt tokens of calls that tell both."""
    if calls.column("cached_tokens").null_count == calls.num_rows:
        return None
    cached, asked = floats(calls.column("cached_tokens")), floats(calls.column("input_tokens"))
    told = ~np.isnan(cached) & ~np.isnan(asked)
    total = float(asked[told].sum())
    return float(np.minimum(cached, asked)[told].sum()) / total if total else None


def _from_counters(samples: pa.Table) -> float | None:
    """Growth of the hit counter over growth of the query counter, all replicas.

    A counter that falls was reset; growth is counted from zero again.
    """
    hit = floats(samples.column("prefix_hit_tokens_total"))
    asked = floats(samples.column("prefix_query_tokens_total"))
    told = np.flatnonzero(~np.isnan(hit) & ~np.isnan(asked))
    if told.size < 2:
        return None
    replica = pc.fill_null(samples.column("replica"), "").combine_chunks().dictionary_encode()
    owner = replica.indices.to_numpy()[told]
    order = told[np.lexsort((floats(samples.column("t_s"))[told], owner))]
    same = np.diff(replica.indices.to_numpy()[order]) == 0
    hits, queries = (
        float(np.where(np.diff(c[order]) >= 0, np.diff(c[order]), c[order][1:])[same].sum())
        for c in (hit, asked)
    )
    return min(hits / queries, 1.0) if queries > 0 else None


class Blocks:
    """Block hashes of calls in order of arrival: `ids` numbered densely, `owner` the call.

    A hash stands for its whole prefix, so only the leading run of known blocks is reuse. Hashes
    are compared as they are (64 bits, sign and all).
    """

    def __init__(self, ids: Ints, lengths: Ints, tokens_per_block: Floats, prompt: Floats) -> None:
        self.ids = ids
        self.lengths = lengths
        self.tokens_per_block = tokens_per_block
        self.prompt = prompt
        self.owner = np.repeat(np.arange(lengths.size), lengths)
        self.place = np.arange(ids.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def of(cls, calls: pa.Table) -> Blocks | None:
        """From a calls table; None where no call has hashes and a block size."""
        kept = calls.filter(
            pc.and_(
                pc.is_valid(calls.column("block_hashes")), pc.is_valid(calls.column("block_tokens"))
            )
        )
        if kept.num_rows == 0:
            return None
        kept = kept.take(pc.sort_indices(kept, [("arrival_s", "ascending")]))
        column = kept.column("block_hashes").combine_chunks()
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        raw = column.flatten().to_numpy(zero_copy_only=False)
        _, ids = np.unique(raw, return_inverse=True)
        size = floats(kept.column("block_tokens"))
        prompt = floats(kept.column("input_tokens"))
        prompt = np.where(np.isnan(prompt), lengths * size, prompt)
        return cls(ids.astype(np.int64), lengths, size, prompt)

    def ideal(self) -> float:
        """Hit share of prompt tokens with a cache that forgets nothing, in order of arrival."""
        _, first = np.unique(self.ids, return_index=True)
        new = np.zeros(self.ids.size, dtype=np.bool_)
        new[first] = True
        # a block that this very call brought is not reuse, even where it stands twice in it
        opener = np.zeros(int(self.ids.max(initial=-1)) + 1, dtype=np.int64)
        opener[self.ids[first]] = self.owner[first]
        new |= opener[self.ids] == self.owner
        run = self.lengths.copy()
        np.minimum.at(run, self.owner[new], self.place[new])
        return self._share(run)

    def by_cache_tokens(self, sizes: tuple[int, ...]) -> dict[str, float]:
        """Hit share with an LRU cache of so many tokens (one shared cache, whole blocks)."""
        calls = int(np.searchsorted(np.cumsum(self.lengths), MAX_ACCESSES, side="right"))
        calls = max(calls, 1)
        typical = float(np.median(self.tokens_per_block))
        result = {}
        for size in sizes:
            run = self._lru(int(size // typical), calls)
            result[str(size)] = self._share(run)
        return result

    def _lru(self, capacity: int, calls: int) -> Ints:
        """Leading run found by each of the first `calls` calls.

        A call's blocks are touched last to first, as engines free them: the end of a prefix is
        forgotten before its beginning.
        """
        cache: OrderedDict[int, None] = OrderedDict()
        runs = np.zeros(calls, dtype=np.int64)
        ids, at = self.ids.tolist(), 0
        for call, length in enumerate(self.lengths[:calls].tolist()):
            mine = ids[at : at + length]
            at += length
            run = 0
            for block in mine:
                if block not in cache:
                    break
                run += 1
            runs[call] = run
            for block in reversed(mine):
                cache[block] = None
                cache.move_to_end(block)
            while len(cache) > capacity:
                cache.popitem(last=False)
        return runs

    def _share(self, run: Ints) -> float:
        prompt = self.prompt[: run.size]
        total = float(prompt.sum())
        hit = np.minimum(run * self.tokens_per_block[: run.size], prompt)
        return float(hit.sum()) / total if total else 0.0
