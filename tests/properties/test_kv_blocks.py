"""KV blocks of the reference are conserved: after every change they are counted anew from what
each sequence holds, each hash is used by, and the cache keeps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.making import log_of
from tests.sim.scenarios import random_scenario

from sojourn.sim.reference import engine
from sojourn.sim.reference.prefix import ABORTED, ENDED, PREEMPTED, Blocks, PrefixBlocks
from sojourn.sim.reference.sequence import Aim, Sequence, Tail


class Audit:
    """Counts the blocks of every replica after every change."""

    def __init__(self, patch) -> None:
        self.holders: dict[Blocks, list[Sequence]] = {}
        real = engine.blocks_of

        def watched(plan):
            blocks = real(plan)
            self.holders[blocks] = []
            for name in ("admit", "grow", "register", "leave"):
                setattr(blocks, name, self._audited(blocks, name))
            return blocks

        patch.setattr(engine, "blocks_of", watched)

    def _audited(self, blocks, name):
        method = getattr(blocks, name)

        def changing(sequence, *args):
            method(sequence, *args)
            if name == "admit":
                self.holders[blocks].append(sequence)
            elif name == "leave":
                self.holders[blocks].remove(sequence)
            self.check(blocks)

        return changing

    def check(self, blocks) -> None:
        holders = self.holders[blocks]
        unit = blocks.unit if isinstance(blocks, PrefixBlocks) else 0
        own = sum(s.blocks - s.held * unit for s in holders)
        assert all(s.blocks >= s.held * unit for s in holders)
        used, kept = own, 0
        if isinstance(blocks, PrefixBlocks):
            users = Counter(h for s in holders for h in s.hashes[: s.held])
            assert {h: n for h, n in blocks.users.items() if n} == users
            used += unit * len(users)
            kept_hashes = {k for k in blocks.kept if not isinstance(k, Tail)}
            assert kept_hashes == {h for h, n in blocks.users.items() if not n}
            kept = sum(k.blocks if isinstance(k, Tail) else unit for k in blocks.kept)
            assert blocks.clean >= 0
            assert blocks.clean + kept + used == blocks.total
            assert all(k.blocks > 0 for k in blocks.kept if isinstance(k, Tail))
        assert blocks.used == used
        assert 0 <= blocks.free <= blocks.total


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_blocks_are_conserved_and_all_free_at_the_end(seed):
    with pytest.MonkeyPatch.context() as patch:
        audit = Audit(patch)
        log_of(random_scenario(seed))
    assert audit.holders
    for blocks, holders in audit.holders.items():
        assert not holders
        assert blocks.free == blocks.total


def sequence(prompt, hashes):
    aim = Aim(prompt, 1, at_hand=0, at_hand_again=0, hashes=hashes)
    return Sequence(aim, priority=0, luck=0, ended=lambda: None)


def admitted(blocks, one, tokens):
    """Admit a sequence, compute that many tokens of it; how many were hit."""
    hit = blocks.hit(one)
    blocks.admit(one, hit)
    blocks.grow(one, tokens)
    blocks.register(one, tokens)
    one.computed = tokens
    return hit.tokens


def test_more_hashes_than_a_preempted_call_registered_reach_into_its_tail():
    """Its registering ended at the first hash, which another had; when it comes back it hits two
    hashes of the other's, and of its own tail of five blocks what reaches further."""
    blocks = PrefixBlocks(20, 4, 1)
    first, second = sequence(9, [1, 2]), sequence(22, [1, 2])
    second.hashes = [1, 2]
    assert admitted(blocks, second, 0) == 0
    assert admitted(blocks, first, 9) == 0
    blocks.grow(second, 21)
    blocks.register(second, 21)
    second.computed = 21
    assert (second.held, second.registering) == (0, False)
    blocks.leave(second, PREEMPTED)
    assert (second.tail.blocks, blocks.free, blocks.clean) == (5, 17, 12)
    hit = blocks.hit(second)
    assert (hit.tokens, hit.hashes, hit.shared) == (20, 2, 2)
    blocks.admit(second, hit)
    assert (second.blocks, blocks.free, blocks.clean) == (5, 14, 14)


def test_a_tail_loses_its_last_blocks_first_and_what_is_left_is_hit():
    blocks = PrefixBlocks(10, 4, 1)
    one, other = sequence(30, [7]), sequence(12, [])
    admitted(blocks, one, 20)
    blocks.leave(one, PREEMPTED)
    assert (one.registered, one.tail.blocks, blocks.clean) == (1, 4, 5)
    admitted(blocks, other, 24)
    assert (one.tail.blocks, blocks.hit(one).tokens) == (3, 16)


def test_a_tail_behind_a_lost_hash_is_forgotten():
    """Only where the hash went before the tail did; the order of recency prevents it, so the
    cache is brought there by hand."""
    blocks = PrefixBlocks(10, 4, 1)
    one = sequence(30, [7])
    admitted(blocks, one, 20)
    blocks.leave(one, PREEMPTED)
    del blocks.kept[7], blocks.users[7]
    blocks.clean += 1
    assert admitted(blocks, one, 4) == 0
    assert (one.tail, one.blocks, blocks.clean, blocks.free) == (None, 1, 9, 9)
    assert not blocks.kept


def test_an_aborted_calls_tail_is_kept_but_nobody_hits_it():
    blocks = PrefixBlocks(10, 4, 1)
    one = sequence(30, [])
    admitted(blocks, one, 20)
    blocks.leave(one, ABORTED)
    assert (len(blocks.kept), blocks.clean, blocks.free) == (1, 5, 10)
    assert blocks.hit(sequence(30, [])).tokens == 0


def test_recency_is_tail_first_then_the_last_hash_before_the_first():
    blocks = PrefixBlocks(20, 4, 1)
    one = sequence(30, [5, 6, 7])
    admitted(blocks, one, 20)
    blocks.leave(one, ENDED)
    order = [key if isinstance(key, int) else "tail" for key in blocks.kept]
    assert order == ["tail", 7, 6, 5]
