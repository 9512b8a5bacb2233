"""Images that a replica's encoder has kept: least recently used ones go first."""

from __future__ import annotations

import numpy as np

from sojourn.sim.kernel.arrays import image_buckets, images, pools, replicas
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.luck import mixed
from sojourn.sim.kernel.state import NIL


@compiled
def _bucket(w: World, r: Number, image: Number) -> Number:
    mask = np.uint64(w.image_buckets_each - 1)
    return r * w.image_buckets_each + np.int64(mixed(np.uint64(image)) & mask)


@compiled
def _find(w: World, r: Number, image: Number) -> Number:
    table = images(w)
    at = image_buckets(w)[_bucket(w, r, image)]
    while at != NIL and table[at].hash != image:
        at = table[at].chain
    return at + 0


@compiled
def _unlink(w: World, r: Number, n: Number) -> None:
    table, replica = images(w), replicas(w)[r]
    node = table[n]
    if node.before == NIL:
        replica.image_first = node.after
    else:
        table[node.before].after = node.after
    if node.after == NIL:
        replica.image_last = node.before
    else:
        table[node.after].before = node.before


@compiled
def _append(w: World, r: Number, n: Number) -> None:
    table, replica = images(w), replicas(w)[r]
    table[n].before, table[n].after = replica.image_last, NIL
    if replica.image_last == NIL:
        replica.image_first = n
    else:
        table[replica.image_last].after = n
    replica.image_last = n


@compiled
def image_hit(w: World, r: Number, image: Number) -> Number:
    """Whether an image is kept; if so it is now the most recently used."""
    if image == 0 or w.images_each == 0:
        return False
    n = _find(w, r, image)
    if n == NIL:
        return False
    _unlink(w, r, n)
    _append(w, r, n)
    return True


@compiled
def image_keep(w: World, r: Number, image: Number) -> None:
    """Keep an image that was encoded; the least recently used goes if there is no room."""
    replica = replicas(w)[r]
    most = pools(w)[replica.pool].images
    if image == 0 or most <= 0 or image_hit(w, r, image):
        return
    table, heads = images(w), image_buckets(w)
    if replica.image_count < most:
        n = r * w.images_each + replica.image_count
        replica.image_count += 1
    else:
        n = replica.image_first + 0
        _unlink(w, r, n)
        place = _bucket(w, r, table[n].hash)
        if heads[place] == n:
            heads[place] = table[n].chain
        else:
            at = heads[place]
            while table[at].chain != n:
                at = table[at].chain
            table[at].chain = table[n].chain
    place = _bucket(w, r, image)
    table[n].hash = image
    table[n].chain = heads[place]
    heads[place] = n
    _append(w, r, n)
