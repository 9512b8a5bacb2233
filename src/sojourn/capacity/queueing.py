"""Queueing formulas in closed form: the first guess, and the yardstick the simulator is held to.

Symbols throughout: lambda arrivals per second, S service time of one visit in seconds,
mu = 1/S, c servers, a = lambda S offered load in erlangs, rho = a/c utilisation, Ca2 and Cs2
squared coefficients of variation of gaps and of service times. A formula asked outside the
range it holds in raises `DomainError`; it never returns a number nobody should use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from sojourn.errors import DomainError

KIMURA_MAX_RHO: Final = 0.85
"""Above it the two-moment tail is off by more than its own size in public checks (the
vllm-project/semantic-router fleet simulator refuses there too); simulate instead."""

_MOST_EXPONENT: Final = 700.0
"""e to a higher power is beyond a float."""


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise DomainError(f"{name} must be a positive number, got {value}")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise DomainError(f"{name} must be a number >= 0, got {value}")


def utilisation(arrival_rate: float, service_s: float, servers: int = 1) -> float:
    """Utilisation rho = lambda S / c, without a limit: 1 and more means the queue grows.

    Symbols: lambda `arrival_rate` 1/s, S `service_s` s, c `servers`. Source: definition.
    Wrong when: S itself depends on the load (continuous batching, retries).
    """
    _not_negative(arrival_rate=arrival_rate, service_s=service_s)
    _servers(servers)
    return arrival_rate * service_s / servers


def _servers(servers: int) -> None:
    if servers < 1:
        raise DomainError(f"servers must be at least 1, got {servers}")


def _stable(arrival_rate: float, service_s: float, servers: int = 1) -> float:
    rho = utilisation(arrival_rate, service_s, servers)
    if rho >= 1:
        raise DomainError(
            f"utilisation {rho:.3g} is 1 or more: the queue grows without end and has no mean"
            " wait. Lower the load, add servers, or simulate the finite run"
        )
    return rho


def little(rate: float, time_s: float) -> float:
    """Little's law: mean number inside N = lambda T.

    Symbols: lambda `rate` 1/s, T `time_s` mean time inside, s. Source: Little 1961.
    Wrong when: the system is not stationary (a growing queue, a finite burst).
    """
    _not_negative(rate=rate, time_s=time_s)
    return rate * time_s


def erlang_b(servers: int, offered: float) -> float:
    """Erlang B: share of arrivals lost with c servers and no queue.

    Symbols: c `servers`, a `offered` = lambda S, erlangs. B(0)=1, B(k)=aB(k-1)/(k+aB(k-1)).
    Source: Erlang 1917, the standard recursion. Wrong when: arrivals are bursty (not Poisson).
    """
    _servers(servers)
    _not_negative(offered=offered)
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Erlang C: probability that an arrival waits, C(c, a) = B / (1 - rho (1 - B)).

    Symbols: c `servers`, a `offered` = lambda S < c, erlangs; B Erlang B; rho = a/c.
    Source: Erlang 1917; recursion form, which cannot overflow at many servers.
    Wrong when: service time depends on the queue (continuous batching), arrivals not Poisson.
    """
    _servers(servers)
    _not_negative(offered=offered)
    _stable(offered, 1.0, servers)
    blocked = erlang_b(servers, offered)
    return blocked / (1 - offered / servers * (1 - blocked))


def mm1_wait(arrival_rate: float, service_s: float) -> float:
    """M/M/1 mean wait in queue, s: Wq = rho S / (1 - rho).

    Symbols: lambda 1/s, S s, rho = lambda S < 1. Source: standard.
    Wrong when: more than one server, service not exponential, arrivals not Poisson.
    """
    rho = _stable(arrival_rate, service_s)
    return rho * service_s / (1 - rho)


def mmc_wait(arrival_rate: float, service_s: float, servers: int) -> float:
    """M/M/c mean wait in queue, s: Wq = C(c, a) / (c mu - lambda).

    Symbols: lambda 1/s, S s, c servers, a = lambda S. Source: standard.
    Wrong when: as Erlang C.
    """
    return allen_cunneen_wait(arrival_rate, service_s, servers)


def mmc_wait_tail(arrival_rate: float, service_s: float, servers: int, *, wait_s: float) -> float:
    """M/M/c: P(Wq > t) = C(c, a) exp(-(c mu - lambda) t).

    Symbols: t `wait_s` s, the others as `mmc_wait`. Source: standard. Wrong when: as Erlang C.
    """
    _not_negative(wait_s=wait_s)
    _positive(service_s=service_s)
    waits = erlang_c(servers, arrival_rate * service_s)
    return waits * math.exp(-(servers / service_s - arrival_rate) * wait_s)


def mg1_wait(arrival_rate: float, service_s: float, cs2: float) -> float:
    """Pollaczek-Khinchine, M/G/1 mean wait, s: Wq = rho/(1-rho) (1+Cs2)/2 S.

    Symbols: lambda 1/s, S mean service s, Cs2 `cs2` its squared coefficient of variation.
    Source: Pollaczek 1930, Khinchine 1932; used for LLM serving by arXiv 2407.05347.
    Wrong when: arrivals not Poisson, several servers, service depends on the queue.
    """
    _not_negative(cs2=cs2)
    return mm1_wait(arrival_rate, service_s) * (1 + cs2) / 2


def allen_cunneen_wait(
    arrival_rate: float, service_s: float, servers: int, *, ca2: float = 1.0, cs2: float = 1.0
) -> float:
    """Allen-Cunneen, G/G/c mean wait, s: Wq = C(c,a)/(c mu (1-rho)) (Ca2+Cs2)/2.

    Symbols: lambda 1/s, S s, c servers, Ca2 of the gaps, Cs2 of service. Exact for M/M/c.
    Source: Allen 1990; the form read in three public fleet planners.
    Wrong when: gaps are correlated (rate drift: use the peak window), rho near 1, service
    depends on the number in service (continuous batching: use S at the load's own batch).
    """
    _not_negative(ca2=ca2, cs2=cs2)
    rho = _stable(arrival_rate, service_s, servers)
    if rho == 0:
        return 0.0
    waits = erlang_c(servers, arrival_rate * service_s)
    return waits * service_s / (servers * (1 - rho)) * (ca2 + cs2) / 2


def sakasegawa_wait(
    arrival_rate: float, service_s: float, servers: int, *, ca2: float = 1.0, cs2: float = 1.0
) -> float:
    """G/G/c mean wait without Erlang C, s: Wq = rho^(sqrt(2(c+1))-1)/(c(1-rho)) (Ca2+Cs2)/2 S.

    Symbols: as `allen_cunneen_wait`. Source: Sakasegawa 1977.
    Wrong when: as `allen_cunneen_wait`; and with many servers below rho 0.9, where the wait is so
    small that the error (at most 0.034 S for exponential service) is many times it.
    """
    _not_negative(ca2=ca2, cs2=cs2)
    rho = _stable(arrival_rate, service_s, servers)
    if rho == 0:
        return 0.0
    power = math.sqrt(2 * (servers + 1)) - 1
    return float(rho**power / (servers * (1 - rho)) * (ca2 + cs2) / 2 * service_s)


def kimura_wait_quantile(
    arrival_rate: float,
    service_s: float,
    servers: int,
    *,
    cs2: float = 1.0,
    quantile: float = 0.99,
) -> float:
    """Kimura's form of a wait quantile in M/G/c, s: t = ln(C/(1-q)) (1+Cs2) / (2 (c mu - lambda)).

    Symbols: q `quantile`; C Erlang C; 0 where C <= 1-q. Exact for M/M/c.
    Source: Kimura 1994 as coded in vllm-project/semantic-router fleet-sim `analytical.py`.
    Wrong when: rho above 0.85 (refused), heavy-tailed service, arrivals not Poisson.
    """
    _not_negative(cs2=cs2)
    if not 0 < quantile < 1:
        raise DomainError(f"quantile lies in (0, 1), got {quantile}")
    rho = _stable(arrival_rate, service_s, servers)
    if rho > KIMURA_MAX_RHO:
        raise DomainError(
            f"utilisation {rho:.3g} is beyond {KIMURA_MAX_RHO}, where this tail formula holds."
            " Simulate instead"
        )
    if rho == 0:
        return 0.0
    waits = erlang_c(servers, arrival_rate * service_s)
    if waits <= 1 - quantile:
        return 0.0
    spare = servers / service_s - arrival_rate
    return math.log(waits / (1 - quantile)) * (1 + cs2) / (2 * spare)


def processor_sharing_time(arrival_rate: float, service_s: float, own_s: float) -> float:
    """M/G/1 processor sharing, mean time inside of a job of length x, s: E[T|x] = x/(1-rho).

    Symbols: lambda 1/s, S `service_s` mean service s, x `own_s` s. Insensitive to the
    distribution of S. Source: standard (Kleinrock 1976).
    Wrong when: jobs do not share evenly (a prefill-first engine), or slots are limited.
    """
    _not_negative(own_s=own_s)
    return own_s / (1 - _stable(arrival_rate, service_s))


def deadline_failure(
    arrival_rate: float, service_s: float, limit_s: float, *, runs_on: bool = True
) -> float:
    """M/M/1, first come first served: share of visits not done within a time limit.

    p = (1 + rho) / (e^(dT) + lambda (e^(dT) - 1) / d + rho) where work given up in service runs on
    to its end (`runs_on`), else p = 1 / (e^(dT) + lambda (e^(dT) - 1) / d); those that reach the
    limit waiting leave the queue. Beyond capacity p -> 1 - (mu/lambda)^2 as T grows where work runs
    on (the server does work that nobody waits for), else 1 - mu/lambda.
    Symbols: lambda `arrival_rate` 1/s, S `service_s` s, mu = 1/S, rho = lambda S (may exceed 1),
    T `limit_s` s from arrival to end of service, d = mu - lambda.
    Source: M/M/1 with fixed patience (Barrer 1957; Baccelli, Boyer & Hebuterne 1984): density
    lambda p0 e^(-dx) of the work found, x < T, from level crossings; that the limit counts to the
    end of service is added here. Wrong when: service is not exponential, several servers, arrivals
    not Poisson (retries that follow at once).
    """
    _not_negative(arrival_rate=arrival_rate, limit_s=limit_s)
    _positive(service_s=service_s)
    exponent = (1 / service_s - arrival_rate) * limit_s
    if exponent > _MOST_EXPONENT:
        return 0.0
    grown = math.expm1(exponent) / exponent if exponent else 1.0
    odds = math.exp(exponent) + arrival_rate * limit_s * grown
    rho = arrival_rate * service_s
    return (1 + rho) / (odds + rho) if runs_on else 1 / odds


def attempts(failure: float, retries: int) -> float:
    """Mean attempts of a request with at most r retries: E = (1 - p^(r+1)) / (1 - p).

    Symbols: p `failure` probability that an attempt fails, r `retries`. r+1 at p = 1.
    Source: geometric sum; figures in atlasofengineering.com retry-budget.
    Wrong when: failures repeat (a timeout selects the long requests): the truth is larger.
    """
    if not 0 <= failure <= 1:
        raise DomainError(f"failure is a probability, got {failure}")
    if retries < 0:
        raise DomainError(f"retries must be >= 0, got {retries}")
    return float(sum(failure**k for k in range(retries + 1)))


def worst_case_attempts(retries: int, layers: int) -> int:
    """Attempts at the last layer when every layer retries and all fail: (r+1)^L.

    Symbols: r `retries` per layer, L `layers`. Source: 3 x 3 x 3 = 27, the common warning.
    Wrong when: layers share a retry budget or mark requests as retried.
    """
    if retries < 0 or layers < 0:
        raise DomainError(f"retries and layers must be >= 0, got {retries} and {layers}")
    return int((retries + 1) ** layers)


def hidden_capacity(service_rate: float, retries: int) -> float:
    """The load below which recovery from any overload is sure, 1/s: mu / (r+1).

    Symbols: mu `service_rate` attempts/s the system can do, r `retries`. Between it and mu the
    system is vulnerable: it works, but does not come back by itself once overloaded.
    Source: derived from the definitions of Bronson 2021 and Huang, OSDI 2022 (metastable).
    Wrong when: retries are limited by a budget or given up by users.
    """
    _positive(service_rate=service_rate)
    if retries < 0:
        raise DomainError(f"retries must be >= 0, got {retries}")
    return service_rate / (retries + 1)


def retry_fixed_points(
    rate: float, failure_of: Callable[[float], float], retries: int, *, grid: int = 2001
) -> tuple[float, ...]:
    """Loads with retries that sustain themselves, 1/s: all x with x = lambda E(p(x)).

    Symbols: lambda `rate` first attempts 1/s, p `failure_of(x)` share of attempts that fail at
    attempt load x, r `retries`. Every x lies in [lambda, lambda (r+1)]. More than one: a
    metastable system, which a trigger can push from the lower to the higher load; of three the
    middle one is unstable. Found by sign changes on `grid` points, then bisection.
    Source: derived from `attempts`. Wrong when: two roots lie within one grid cell, or p
    depends on history (queues that have not drained).
    """
    _positive(rate=rate)
    if retries < 0 or grid < 2:
        raise DomainError("retries must be >= 0 and grid >= 2")
    if retries == 0:
        return (float(rate),)
    loads = np.linspace(rate, rate * (retries + 1), grid)

    def excess(load: float) -> float:
        return rate * attempts(failure_of(load), retries) - load

    values = np.array([excess(float(load)) for load in loads])
    near = 1e-12 * rate * (retries + 1)
    roots = [float(loads[0])] if abs(values[0]) <= near else []
    for low, high, left, right in zip(loads, loads[1:], values, values[1:], strict=False):
        if abs(right) <= near:
            roots.append(float(high))
        elif abs(left) > near and left * right < 0:
            roots.append(_bisect(excess, float(low), float(high)))
    return tuple(roots)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    rising = function(low) < 0
    for _ in range(80):
        middle = (low + high) / 2
        if (function(middle) < 0) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2
