"""Blocks of a replica: taken, given back, and kept by hash (rule book: "Prefix cache").

A replica's nodes are hashes and kept tails, found by bucket and chain; those used by nobody are in
a list by recency. Without a prefix cache all free blocks are clean and there are no nodes.
"""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import (
    buckets,
    calls,
    hashes,
    holders,
    nodes,
    pools,
    replicas,
)
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.luck import mixed
from sojourn.sim.kernel.state import HASH_NODE, NIL, TAIL_NODE
from sojourn.sim.log import NONE

ENDED, PREEMPTED, ABORTED = range(3)


@compiled
def _bucket(w: World, r: Number, value: Number) -> Number:
    """Eight hashes that first occurred one after the other, as those of a prompt do, are
    neighbours: one line of memory."""
    line = np.int64(mixed(np.uint64(value >> 3)) & np.uint64(0x7FFFFFFFFFFFFFF)) << 3
    return r * w.buckets_each + ((line | (value & 7)) & (w.buckets_each - 1))


@compiled
def find(w: World, r: Number, value: Number) -> Number:
    """The node of a hash in replica r; NIL if it is not there."""
    table = nodes(w)
    at = buckets(w)[_bucket(w, r, value)]
    while at != NIL and table[at].hash != value:
        at = table[at].chain
    return at + 0


@compiled
def _new_node(w: World, r: Number) -> Number:
    replica = replicas(w)[r]
    found = replica.node_free
    if found != NIL:
        replica.node_free = nodes(w)[found].chain
        return found + 0
    found = r * w.nodes_each + replica.nodes_used
    replica.nodes_used += 1
    return found + 0


@compiled
def _free_node(w: World, r: Number, n: Number) -> None:
    replica = replicas(w)[r]
    nodes(w)[n].chain = replica.node_free
    replica.node_free = n


@compiled
def _insert(w: World, r: Number, value: Number, blocks: Number) -> None:
    """A hash becomes present, used by one."""
    n = _new_node(w, r)
    node = nodes(w)[n]
    place = _bucket(w, r, value)
    node.hash, node.users, node.blocks, node.owner = value, 1, blocks, HASH_NODE
    node.chain = buckets(w)[place]
    buckets(w)[place] = n
    if w.with_holders == 1:
        holders(w)[value] |= np.uint64(1) << np.uint64(r)


@compiled
def _erase(w: World, r: Number, n: Number) -> None:
    """A hash is present no longer."""
    table, heads = nodes(w), buckets(w)
    value = table[n].hash
    place = _bucket(w, r, value)
    if heads[place] == n:
        heads[place] = table[n].chain
    else:
        at = heads[place]
        while table[at].chain != n:
            at = table[at].chain
        table[at].chain = table[n].chain
    _free_node(w, r, n)
    if w.with_holders == 1:
        holders(w)[value] &= ~(np.uint64(1) << np.uint64(r))


@compiled
def _keep(w: World, r: Number, n: Number) -> None:
    """A node becomes the most recently kept."""
    table, replica = nodes(w), replicas(w)[r]
    table[n].before, table[n].after = replica.kept_last, NIL
    if replica.kept_last == NIL:
        replica.kept_first = n
    else:
        table[replica.kept_last].after = n
    replica.kept_last = n


@compiled
def _unkeep(w: World, r: Number, n: Number) -> None:
    """Take a node out of the kept ones."""
    table, replica = nodes(w), replicas(w)[r]
    node = table[n]
    if node.before == NIL:
        replica.kept_first = node.after
    else:
        table[node.before].after = node.after
    if node.after == NIL:
        replica.kept_last = node.before
    else:
        table[node.after].before = node.before


@compiled
def take(w: World, r: Number, count: Number) -> None:
    """Take free blocks: clean ones first, then what was kept least recently."""
    replica = replicas(w)[r]
    replica.free -= count
    if count <= replica.clean:
        replica.clean -= count
        return
    short = count - replica.clean
    replica.clean = 0
    table = nodes(w)
    while short > 0:
        n = replica.kept_first
        node = table[n]
        if node.owner == HASH_NODE:
            replica.clean += max(node.blocks - short, 0)
            short -= node.blocks
            _unkeep(w, r, n)
            _erase(w, r, n)
        elif node.blocks > short:
            node.blocks -= short
            short = 0
        else:
            short -= node.blocks
            _drop_tail(w, r, n)


@compiled
def _drop_tail(w: World, r: Number, n: Number) -> None:
    owner = nodes(w)[n].owner
    if owner != TAIL_NODE:
        calls(w)[owner].tail = NIL
    _unkeep(w, r, n)
    _free_node(w, r, n)


@compiled
def look_up(w: World, c: Number) -> Number:
    """What is cached of a call: (hashes, blocks of its own tail, blocks of both nobody uses)."""
    call = calls(w)[c]
    r, pool = call.replica, pools(w)[call.pool]
    found, revived = np.int64(0), np.int64(0)
    if pool.unit < 0 or call.moved != NONE:
        return found, np.int64(0), revived
    table, names = nodes(w), hashes(w)
    most = call.prompt + call.written - 1
    unit_tokens = pool.unit * pool.block
    while found < call.hashes and (found + 1) * unit_tokens <= most:
        n = find(w, r, names[call.first_hash + found])
        if n == NIL:
            break
        if table[n].users == 0:
            revived += pool.unit
        found += 1
    tail = np.int64(0)
    if call.tail != NIL and found >= call.registered:
        covered = call.registered * pool.unit + table[call.tail].blocks
        tail = max(min(covered, most // pool.block) - found * pool.unit, np.int64(0))
    return found, tail, revived + tail


@compiled
def hit_tokens(w: World, r: Number, c: Number) -> Number:
    """Prompt tokens that replica r's cache would give a call now (r is settled)."""
    call = calls(w)[c]
    pool = pools(w)[call.pool]
    if pool.unit < 0 or call.moved != NONE:
        return np.int64(0)
    unit_tokens = pool.unit * pool.block
    names = hashes(w)
    found = np.int64(0)
    while (
        found < call.hashes
        and (found + 1) * unit_tokens <= call.prompt - 1
        and find(w, r, names[call.first_hash + found]) != NIL
    ):
        found += 1
    return found * unit_tokens


@compiled
def longest_hits(w: World, c: Number, asked: Number) -> Number:
    """Of the replicas in the bits of `asked`, those that would give a call most hit tokens now
    and how many that are: (bits, tokens). They are settled; `with_holders` is 1."""
    call = calls(w)[c]
    pool = pools(w)[call.pool]
    found = np.int64(0)
    if pool.unit < 0 or call.moved != NONE:
        return asked, found
    unit_tokens = pool.unit * pool.block
    names, table = hashes(w), holders(w)
    while found < call.hashes and (found + 1) * unit_tokens <= call.prompt - 1:
        left = asked & table[names[call.first_hash + found]]
        if left == np.uint64(0):
            break
        asked = left
        found += 1
    return asked, found * unit_tokens


@compiled
def take_hit(w: World, c: Number, found: Number, tail: Number) -> None:
    """A call that is admitted takes what `look_up` found; the rest of its tail becomes clean."""
    call = calls(w)[c]
    r = call.replica
    table, names, replica = nodes(w), hashes(w), replicas(w)[r]
    for i in range(found):
        n = find(w, r, names[call.first_hash + i])
        node = table[n]
        if node.users == 0:
            _unkeep(w, r, n)
            replica.free -= node.blocks
        node.users += 1
    call.held = found
    if call.tail != NIL:
        n = call.tail
        replica.free -= tail
        replica.clean += table[n].blocks - tail
        _drop_tail(w, r, n)


@compiled
def register(w: World, c: Number, tokens: Number) -> None:
    """Make present the hashes of a call whose units lie wholly in its first `tokens` tokens."""
    call = calls(w)[c]
    pool = pools(w)[call.pool]
    if pool.unit < 0 or call.registering == 0:
        return
    names = hashes(w)
    unit_tokens = pool.unit * pool.block
    while call.held < call.hashes and (call.held + 1) * unit_tokens <= tokens:
        value = names[call.first_hash + call.held]
        if find(w, call.replica, value) != NIL:
            call.registering = 0
            return
        _insert(w, call.replica, value, pool.unit)
        call.held += 1


@compiled
def give_back(w: World, c: Number, blocks: Number, how: Number) -> None:
    """A call leaves a replica that holds `blocks` blocks for it; `computed` is its own by now."""
    call = calls(w)[c]
    r, pool = call.replica, pools(w)[call.pool]
    replica = replicas(w)[r]
    if pool.unit < 0:
        replica.free += blocks
        replica.clean += blocks
        return
    if how == ENDED:
        register(w, c, call.computed)
    table, names = nodes(w), hashes(w)
    full = max(call.computed // pool.block, call.held * pool.unit)
    tail = full - call.held * pool.unit
    if tail > 0:
        n = _new_node(w, r)
        node = table[n]
        node.hash, node.users, node.blocks, node.owner = 0, 0, tail, TAIL_NODE
        if how == PREEMPTED and call.moved == NONE:
            node.owner = c
            call.tail = n
        _keep(w, r, n)
    for i in range(call.held - 1, -1, -1):
        n = find(w, r, names[call.first_hash + i])
        node = table[n]
        node.users -= 1
        if node.users == 0:
            _keep(w, r, n)
            replica.free += node.blocks
    replica.free += tail + blocks - full
    replica.clean += blocks - full
    call.registered = call.held
    call.held = 0


@compiled
def forget_tail(w: World, c: Number) -> None:
    """A preempted call will not come back: nobody can hit its tail any more."""
    call = calls(w)[c]
    if call.tail != NIL:
        nodes(w)[call.tail].owner = TAIL_NODE
        call.tail = NIL
