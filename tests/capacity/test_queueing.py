"""Closed forms: the published table, exact special cases, laws, and refusals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity import queueing as q
from sojourn.errors import DomainError

TABLE = [
    (1, 1.0, (1.0, 2.33, 4.0, 9.0, 19.0)),
    (4, 1.0, (0.087, 0.357, 0.746, 1.97, 4.46)),
    (16, 1.0, (0.001, 0.027, 0.095, 0.370, 0.975)),
    (16, 4.6, (0.003, 0.076, 0.267, 1.04, 2.73)),
]
RHOS = (0.5, 0.7, 0.8, 0.9, 0.95)
loads = st.floats(0.01, 0.98)
counts = st.integers(1, 200)


@pytest.mark.parametrize(("servers", "cs2", "waits"), TABLE)
def test_published_table_of_waits(servers, cs2, waits):
    """Wq in units of E[S], Erlang C x (1+cv2)/2: to the digits printed."""
    for rho, expected in zip(RHOS, waits, strict=True):
        got = q.allen_cunneen_wait(rho * servers, 1.0, servers, cs2=cs2)
        assert got == pytest.approx(expected, abs=0.0006 if expected < 1 else 0.006)


def test_erlang_c_against_the_textbook_sum():
    """C = (a^c/c! c/(c-a)) / (sum_{k<c} a^k/k! + the same)."""
    for servers, offered in ((1, 0.5), (3, 2.0), (10, 8.5), (50, 45.0)):
        last = offered**servers / math.factorial(servers) * servers / (servers - offered)
        low = sum(offered**k / math.factorial(k) for k in range(servers))
        assert q.erlang_c(servers, offered) == pytest.approx(last / (low + last), rel=1e-12)


@given(rho=loads, cs2=st.floats(0, 20))
def test_one_server_forms_agree(rho, cs2):
    """Allen-Cunneen with one server and Poisson arrivals is Pollaczek-Khinchine."""
    assert q.allen_cunneen_wait(rho, 1.0, 1, cs2=cs2) == pytest.approx(q.mg1_wait(rho, 1.0, cs2))
    assert q.mmc_wait(rho, 1.0, 1) == pytest.approx(q.mm1_wait(rho, 1.0))


def test_md1_is_the_published_prefill_formula():
    """TTFT = D + R D^2 / (2 (1 - R D)) (DistServe)."""
    rate, service = 3.0, 0.2
    expected = rate * service**2 / (2 * (1 - rate * service))
    assert q.mg1_wait(rate, service, 0.0) == pytest.approx(expected)


@given(rho=loads, servers=counts)
def test_more_load_never_shortens_the_wait(rho, servers):
    more = rho + (0.99 - rho) / 2
    assert q.mmc_wait(more * servers, 1.0, servers) >= q.mmc_wait(rho * servers, 1.0, servers)


@given(rho=loads, servers=counts)
def test_more_servers_never_lengthen_the_wait(rho, servers):
    rate = rho * servers
    assert q.mmc_wait(rate, 1.0, servers + 1) <= q.mmc_wait(rate, 1.0, servers) + 1e-12


@given(rho=loads, servers=counts)
def test_erlang_c_is_a_probability_above_erlang_b(rho, servers):
    blocked, waits = q.erlang_b(servers, rho * servers), q.erlang_c(servers, rho * servers)
    assert 0 <= blocked <= waits <= 1


@given(rho=st.floats(0.4, 0.85), servers=st.integers(1, 64))
def test_kimura_is_exact_for_exponential_service(rho, servers):
    """P(Wq > t99) = 1% by the M/M/c tail, or fewer than 1% wait at all."""
    rate = min(rho, 0.849) * servers
    wait = q.kimura_wait_quantile(rate, 1.0, servers)
    if wait == 0:
        assert q.erlang_c(servers, rate) <= 0.01
    else:
        assert q.mmc_wait_tail(rate, 1.0, servers, wait_s=wait) == pytest.approx(0.01)


@given(rho=st.floats(0.3, 0.95), servers=st.integers(1, 64))
def test_sakasegawa_is_near_the_exact_wait(rho, servers):
    """Within 0.034 E[S] of the exact M/M/c wait over this range (the worst is two servers)."""
    exact = q.mmc_wait(rho * servers, 1.0, servers)
    assert q.sakasegawa_wait(rho * servers, 1.0, servers) == pytest.approx(exact, abs=0.034)


@given(rho=loads, own=st.floats(0, 100))
def test_processor_sharing_mean_agrees_with_little(rho, own):
    """Slowdown 1/(1-rho) for every length; the mean number inside is rho/(1-rho)."""
    assert q.processor_sharing_time(rho, 1.0, own) == pytest.approx(own / (1 - rho))
    inside = q.little(rho, q.processor_sharing_time(rho, 1.0, 1.0))
    assert inside == pytest.approx(rho / (1 - rho))


def test_attempts_as_published():
    """r = 3: p = .1 1.11, .3 1.42, .5 1.88, .6 2.18, .9 3.44, 1 4.0."""
    figures = {0.1: 1.11, 0.3: 1.42, 0.5: 1.88, 0.6: 2.18, 0.9: 3.44, 1.0: 4.0}
    for failure, expected in figures.items():
        assert q.attempts(failure, 3) == pytest.approx(expected, abs=0.006)
    assert q.worst_case_attempts(2, 3) == 27
    assert q.worst_case_attempts(3, 3) == 64


@given(failure=st.floats(0, 0.999), retries=st.integers(0, 20))
def test_attempts_is_the_geometric_sum(failure, retries):
    assert q.attempts(failure, retries) == pytest.approx(
        (1 - failure ** (retries + 1)) / (1 - failure), rel=1e-6
    )


def test_fixed_points_without_failure_and_with_total_failure():
    assert q.retry_fixed_points(5.0, lambda _: 0.0, 3) == pytest.approx((5.0,))
    assert q.retry_fixed_points(5.0, lambda _: 1.0, 3) == pytest.approx((20.0,))
    assert q.retry_fixed_points(5.0, lambda _: 0.5, 0) == pytest.approx((5.0,))


def test_a_metastable_system_has_three_fixed_points():
    """Attempts fail with the share beyond mu = 10 once it is passed: between mu/(r+1) and mu both
    a calm and an overloaded load sustain themselves; below mu/(r+1) only the calm one."""

    def failure(load: float) -> float:
        return 1 / (1 + math.exp(-(load - 10.0) * 3))

    retries = 3
    roots = q.retry_fixed_points(6.0, failure, retries)
    assert len(roots) == 3
    for root in roots:
        assert 6.0 * q.attempts(failure(root), retries) == pytest.approx(root, rel=1e-6)
    safe = 0.9 * q.hidden_capacity(10.0, retries)
    assert len(q.retry_fixed_points(safe, failure, retries)) == 1


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(0.5, 20), mu=st.floats(1, 30), retries=st.integers(0, 4))
def test_every_fixed_point_solves_the_equation(rate, mu, retries):
    def failure(load: float) -> float:
        return max(0.0, 1 - mu / load)

    roots = q.retry_fixed_points(rate, failure, retries)
    assert roots
    for root in roots:
        assert rate * q.attempts(failure(root), retries) == pytest.approx(root, rel=1e-6)
        assert rate - 1e-9 <= root <= rate * (retries + 1) + 1e-9


def test_deadline_failure_at_its_ends():
    """An empty system: P(S > T). The limit T = 0 fails all. Far beyond capacity: (mu/lambda)^2 of
    the attempts are done in time where given-up work runs on, mu/lambda where it stops. No step
    at lambda = mu, no overflow."""
    for runs_on in (True, False):
        assert q.deadline_failure(0.0, 2.0, 3.0, runs_on=runs_on) == pytest.approx(math.exp(-1.5))
        assert q.deadline_failure(0.4, 2.0, 0.0, runs_on=runs_on) == pytest.approx(1.0)
        assert q.deadline_failure(1.0, 1.0, 1e5, runs_on=runs_on) < 3e-5
        assert q.deadline_failure(0.1, 1.0, 1e5, runs_on=runs_on) == 0.0
        near = [q.deadline_failure(r, 1.0, 5.0, runs_on=runs_on) for r in (1 - 1e-9, 1, 1 + 1e-9)]
        assert near == pytest.approx([near[1]] * 3, rel=1e-7)
    assert 1 - q.deadline_failure(4.0, 1.0, 1e3) == pytest.approx(1 / 16)
    assert 1 - q.deadline_failure(4.0, 1.0, 1e3, runs_on=False) == pytest.approx(1 / 4)


@given(st.floats(0.01, 5.0), st.floats(1.01, 2.0), st.floats(0.1, 30.0))
def test_deadline_failure_grows_with_load_and_with_work_that_runs_on(rate, more, limit):
    stops, runs_on = (q.deadline_failure(rate, 1.0, limit, runs_on=on) for on in (False, True))
    assert 0 < stops <= runs_on <= 1
    assert q.deadline_failure(more * rate, 1.0, limit) > runs_on
    rounding = 1 + 1e-12  # far beyond capacity a longer limit changes nothing
    assert q.deadline_failure(rate, 1.0, 1.1 * limit) <= runs_on * rounding


@pytest.mark.parametrize(
    "call",
    [
        lambda: q.mm1_wait(1.0, 1.0),
        lambda: q.mmc_wait(8.0, 0.5, 4),
        lambda: q.erlang_c(0, 0.5),
        lambda: q.erlang_c(2, 2.0),
        lambda: q.erlang_b(2, -1.0),
        lambda: q.mg1_wait(0.5, 1.0, -0.1),
        lambda: q.allen_cunneen_wait(0.5, 1.0, 1, ca2=float("nan")),
        lambda: q.kimura_wait_quantile(0.9, 1.0, 1),
        lambda: q.kimura_wait_quantile(0.5, 1.0, 1, quantile=1.0),
        lambda: q.processor_sharing_time(1.2, 1.0, 1.0),
        lambda: q.attempts(1.5, 2),
        lambda: q.attempts(0.5, -1),
        lambda: q.hidden_capacity(0.0, 2),
        lambda: q.little(-1.0, 1.0),
        lambda: q.deadline_failure(1.0, 0.0, 1.0),
        lambda: q.deadline_failure(1.0, 1.0, -1.0),
        lambda: q.retry_fixed_points(0.0, lambda _: 0.0, 2),
    ],
)
def test_outside_its_range_a_formula_refuses(call):
    with pytest.raises(DomainError):
        call()
