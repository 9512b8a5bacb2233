"""Closed forms that only tests need; those the product uses are in `sojourn.capacity.queueing`.

Symbols: rate lambda, service S (mean 1 where it is not named), load a = lambda S, servers c, room K
(waiting and in service).
"""

from __future__ import annotations

import math
from itertools import pairwise, permutations

import numpy as np
from scipy.optimize import brentq
from scipy.stats import poisson


def birth_death(births, deaths):
    """Stationary probabilities of 0..n: p_k = p_0 product of births[i] / deaths[i], i < k."""
    weights = np.concatenate([[1.0], np.cumprod(np.asarray(births) / np.asarray(deaths))])
    return weights / weights.sum()


def mmck(rate, servers, room):
    """M/M/c/K, service 1: (share refused, mean wait of those let in). Little over the queue."""
    p = birth_death(np.full(room, rate), np.minimum(np.arange(1, room + 1), servers))
    waiting = float(np.maximum(np.arange(room + 1) - servers, 0) @ p)
    return float(p[-1]), waiting / (rate * (1 - p[-1]))


def md1k_refused(rate, service, room):
    """M/D/1/K: share refused = 1 - 1 / (pi_0 + rho), pi the number left behind at departures.

    pi_{j+1} = (pi_j - pi_0 a_j - sum_{i=1..j} pi_i a_{j-i+1}) / a_0 for j + 1 < K, a_k the chance
    of k arrivals in a service. Source: Takagi, Queueing Analysis 2 (finite systems), M/G/1/K.
    """
    a = poisson.pmf(np.arange(room + 1), rate * service)
    left = [1.0]
    for j in range(room - 1):
        before = sum(left[i] * a[j - i + 1] for i in range(1, j + 1))
        left.append((left[j] - left[0] * a[j] - before) / a[0])
    return 1 - 1 / (left[0] / sum(left) + rate * service)


def bulk_wait(rate, service, most, *, states=2000):
    """M/D(1,b)/1: a server that takes up to b at once, whatever waits, for D each time.

    i wait while a service begins, A arrive during it (Poisson): next max(i + A - b, 0) wait; if i
    + A = 0 the next service begins with the next arrival. In a service the mean number waiting is
    i + lambda D / 2. Wait = Little over the queue. Source: Bailey 1954 (embedded chain), solved as
    numbers.
    """
    a = poisson.pmf(np.arange(states + most), rate * service)
    chain = np.zeros((states, states))
    for i in range(states):
        nexts = np.maximum(i + np.arange(states + most) - most, 0)
        keep = nexts < states
        np.add.at(chain[i], nexts[keep], a[keep])
    p = np.zeros(states)
    p[0] = 1.0
    for _ in range(4000):
        after = p @ chain
        after /= after.sum()
        if np.abs(after - p).max() < 1e-13:
            break
        p = after
    length = service + p[0] * a[0] / rate
    waiting = float(p @ (np.arange(states) + rate * service / 2)) * service / length
    return waiting / rate


def unlimited_bulk_wait(rate, service):
    """The same without a limit: who arrives in a service waits for the rest of it, D / 2 in the
    mean; that is a share D / (D + e^(-lambda D) / lambda) of all."""
    return service / 2 * service / (service + math.exp(-rate * service) / rate)


def harmonic(n):
    """H_n."""
    return sum(1 / k for k in range(1, n + 1))


def fork_join_two(rate):
    """Two M/M/1 branches: (12 - rho) / 8 x 1 / (mu - lambda). Source: Flatto & Hahn 1984."""
    return (12 - rate) / 8 / (1 - rate)


def fork_join_about(rate, n):
    """Nelson & Tantawi 1988: scaled from two branches, within 5% up to 32."""
    ratio = harmonic(n) / harmonic(2)
    return (ratio + 4 / 11 * (1 - ratio) * rate) * fork_join_two(rate)


def fork_join_bounds(rate, n):
    """Upper: branches as if independent, H_n / (mu - lambda) (Nelson & Tantawi 1988: they are
    associated). Lower: arrivals as if deterministic, H_n / (mu (1 - sigma)) of D/M/1 (Baccelli,
    Makowski & Shwartz 1989, convex order)."""
    sigma = brentq(lambda s: math.exp(-(1 - s) / rate) - s, 0, 1 - 1e-9 if rate < 1 else 1)
    return harmonic(n) / (1 - sigma), harmonic(n) / (1 - rate)


def erlang_arrivals_wait(rate, phases):
    """E_k/M/1, service 1: mean wait sigma / (1 - sigma), sigma = (k lambda / (k lambda + 1 -
    sigma))^k in (0, 1). Source: GI/M/1, Kleinrock 1975, ch. 6."""
    k = phases * rate
    sigma = brentq(lambda s: (k / (k + 1 - s)) ** phases - s, 0, 1 - 1e-6)
    return sigma / (1 - sigma)


def finite_population(clients, think, servers=1):
    """M/M/c//N, service 1: (throughput, mean response). X = sum p_n min(n, c), R = N / X - Z.

    Source: machine repairman; the think time's distribution does not matter (BCMP 1975), nor the
    service's under processor sharing.
    """
    n = np.arange(1, clients + 1)
    p = birth_death((clients - n + 1) / think, np.minimum(n, servers))
    throughput = float(p @ np.minimum(np.arange(clients + 1), servers))
    return throughput, clients / throughput - think


def lru_exact(popularity, size):
    """Hit ratio of LRU under independent references: sum over the ordered contents of the cache
    of product p_i / (1 - those before) x sum of p inside. Source: King 1971."""
    total = 0.0
    for inside in permutations(popularity, size):
        chance, left = 1.0, 1.0
        for p in inside:
            chance, left = chance * p / left, left - p
        total += chance * sum(inside)
    return total


def lru_che(popularity, size):
    """Che's approximation: T with sum (1 - e^(-p T)) = C; hit ratio sum p (1 - e^(-p T)).

    Source: Che, Tung & Wang 2002; why it is that good: Fricker, Robert & Roberts 2012. Wrong when:
    few documents (a per cent or two at ten), references that depend on each other.
    """
    p = np.asarray(popularity)
    time = brentq(lambda t: -np.expm1(-p * t).sum() - size, 0, 1e3 * len(p))
    return float(p @ -np.expm1(-p * time))


def lru_share(order, size):
    """Hit or miss of each reference, by keeping the list: an independent computation."""
    kept: dict[int, None] = {}
    hits = []
    for name in order:
        hits.append(name in kept)
        kept.pop(name, None)
        kept[name] = None
        if len(kept) > size:
            del kept[next(iter(kept))]
    return np.array(hits)


def lindley(arrivals, service):
    """Waits of a single server, first come first served: w' = max(0, w + s - gap)."""
    found, wait = [0.0], 0.0
    for (before, now), work in zip(pairwise(arrivals), service, strict=False):
        wait = max(0.0, wait + work - (now - before))
        found.append(wait)
    return np.array(found)
