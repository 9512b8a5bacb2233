"""Rows of `requests`, `calls` and `spans` from the trees of one trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sojourn.interval import Provenance
from sojourn.records import Stage, Status, TtftOrigin
from sojourn.trace.ledger import Ledger
from sojourn.trace.readers import spans as names
from sojourn.trace.readers.engine_spans import EngineTimes, engine_times
from sojourn.trace.readers.span_trees import close_open_ends, fit, roots_of, walk
from sojourn.trace.readers.spans import Span, first, nanoseconds, number, text, truth, whole
from sojourn.trace.readers.stages import ATTEMPT_NAME, Role, classify
from sojourn.trace.readers.words import status_of_text
from sojourn.trace.sources import Raw

ARRIVAL_OF_CALL: Final = 15
MAX_ATTEMPTS: Final = 1_000
CALL_NAMES: Final = ("chat ", "text_completion", "generate_content", "completion")
"""How the conventions name a model call; calls of other names become `chat MODEL`."""
MEASURED: Final = str(Provenance.MEASURED)


@dataclass
class Rows:
    """Rows in the order of the schema's columns, times in nanoseconds."""

    requests: list[list[Any]] = field(default_factory=list)
    calls: list[list[Any]] = field(default_factory=list)
    spans: list[list[Any]] = field(default_factory=list)
    replicas: list[tuple[str | None, str | None]] = field(default_factory=list)
    """Of each call: the address asked, and the engine instance that answered."""
    instances: dict[str, str] = field(default_factory=dict)
    """The one instance behind an address, where there is exactly one."""


@dataclass
class _Tree:
    """One request's tree while its rows are made."""

    request: str
    roles: dict[str, tuple[Role, Stage | None]]
    engines: dict[str, list[Span]]
    """Engine spans below each client call, by the call's span id."""
    attempts: set[int] = field(default_factory=set)


def trace_rows(trace: str, members: list[Span], out: Rows, ledger: Ledger) -> None:
    """Append the rows of one trace."""
    roots = roots_of(trace, members, ledger)
    reached = 0
    for root, recorded in roots:
        size = sum(1 for _ in walk(root))
        reached += size - (not recorded)
        ended = close_open_ends(root, ledger)
        if not root.end:
            ledger.drop("span never ended", 1, f"row {root.row}: {root.name}")
            continue
        fit(root, ledger)
        request = trace if len(roots) == 1 else f"{trace}:{root.id}"
        _request(root, request, out, ended=ended, recorded=recorded)
    ledger.drop("parents form a circle", len(members) - reached, f"trace {trace}")


def _request(root: Span, request: str, out: Rows, *, ended: bool, recorded: bool) -> None:
    tree = _tree(root, request)
    before = len(out.spans)
    for span, attempt, call in _contexts(root, tree):
        if span is root and not recorded:
            continue
        _span_rows(span, attempt, call, tree, out)
    if not recorded:
        for row in out.spans[before:]:
            if row[9] is not None and row[9] not in tree.roles:
                row[9] = None
    if not tree.attempts:
        for row in out.spans[before:]:
            row[2] = 0
    _call_rows(root, tree, out, {row[0]: row[2] for row in out.spans[before:]})
    out.requests.append(_request_row(root, tree, ended=ended))


def _tree(root: Span, request: str) -> _Tree:
    """Roles of all spans; a call that holds calls, and an engine in an engine, only hold."""
    roles: dict[str, tuple[Role, Stage | None]] = {}
    engines: dict[str, list[Span]] = {}
    stack: list[tuple[Span, Span | None, bool]] = [(root, None, False)]
    while stack:
        span, call, in_engine = stack.pop()
        role, stage = classify(span)
        if role is Role.CALL:
            if call is not None:
                roles[call.id] = (Role.HOLDER, None)
                engines.pop(call.id, None)
            call = span
            engines[span.id] = []
        elif role is Role.ENGINE:
            if in_engine:
                role = Role.HOLDER
            elif call is not None and call.id in engines:
                engines[call.id].append(span)
            in_engine = True
        roles[span.id] = (role, stage)
        stack.extend((child, call, in_engine) for child in span.children)
    return _Tree(request, roles, engines)


def _contexts(root: Span, tree: _Tree) -> Iterator[tuple[Span, int | None, str | None]]:
    """Every span with the attempt and the model call it belongs to, parents first."""
    stack: list[tuple[Span, int | None, str | None]] = [(root, None, None)]
    while stack:
        span, attempt, call = stack.pop()
        role = tree.roles[span.id][0]
        resend = whole(first(span.attrs, names.RESEND))
        counts = role is Role.HOLDER or (role is not Role.STAGE and attempt is None)
        if resend is not None and 0 <= resend < MAX_ATTEMPTS and counts:
            attempt = resend
            tree.attempts.add(attempt)
        if (role is Role.CALL and len(tree.engines.get(span.id, ())) < 2) or (
            role is Role.ENGINE and call is None
        ):
            call = span.id
        yield span, attempt, call
        named = _named_attempts(span, attempt)
        tree.attempts.update(named.values())
        stack.extend(
            (child, named.get(child.id, attempt), call)
            for child in sorted(span.children, key=lambda s: s.start, reverse=True)
        )


def _named_attempts(span: Span, attempt: int | None) -> dict[str, int]:
    """Attempts told by their names only, numbered by their start."""
    if attempt is not None:
        return {}
    tries = [child for child in span.children if ATTEMPT_NAME.match(child.name)]
    if any(first(child.attrs, names.RESEND) is not None for child in tries):
        return {}
    tries.sort(key=lambda child: child.start)
    return {child.id: number for number, child in enumerate(tries)}


def _span_rows(span: Span, attempt: int | None, call: str | None, tree: _Tree, out: Rows) -> None:
    role, stage = tree.roles[span.id]
    wait = number(span.attrs.get("sojourn.wait_s"))
    room = (span.end - span.start) / 1e9
    if wait is not None:
        wait = min(max(wait, 0.0), room)
    name = span.name
    if role is Role.CALL and not name.lower().startswith(CALL_NAMES):
        name = f"chat {text(first(span.attrs, names.MODEL)) or name}"
    out.spans.append(
        [span.id, tree.request, attempt, call, None if stage is None else str(stage),
         text(name), span.start, span.end, wait, span.parent or None, status_of(span),
         MEASURED]
    )  # fmt: skip
    if role is not Role.ENGINE:
        return
    for part in engine_times(span).parts:
        start = min(max(part.start, span.start), span.end)
        end = min(max(part.end, start), span.end)
        if end == start and part.start == part.end:
            continue
        key = f"{span.id}.{part.name.replace(' ', '_')}"
        out.spans.append(
            [key, tree.request, attempt, call, str(part.stage), part.name, start, end, None,
             span.id, str(Status.OK), str(part.provenance)]
        )  # fmt: skip


def _call_rows(root: Span, tree: _Tree, out: Rows, attempts: dict[str, int | None]) -> None:
    taken: set[str] = set()
    for span in walk(root):
        role = tree.roles[span.id][0]
        if role is Role.CALL:
            engines = tree.engines.get(span.id, [])
            taken.update(engine.id for engine in engines)
            place = (attempts.get(span.id), len(engines) < 2)
            if not engines:
                _call_row(span, None, tree, out, place)
            for engine in engines:
                _call_row(span, engine, tree, out, place)
        elif role is Role.ENGINE and span.id not in taken:
            _call_row(None, span, tree, out, (attempts.get(span.id), True))


def _call_row(
    client: Span | None,
    engine: Span | None,
    tree: _Tree,
    out: Rows,
    place: tuple[int | None, bool],
) -> None:
    """One row of `calls`; `place` is its attempt and whether the client's tokens are its own."""
    attempt, alone = place
    times = engine_times(engine) if engine is not None else _client_times(client)
    origin = TtftOrigin.SERVER_ARRIVAL if engine is not None else TtftOrigin.CLIENT_SEND
    first_token = times.first_token
    if first_token is None and client is not None:
        first_token, origin = _client_times(client).first_token, TtftOrigin.CLIENT_SEND
    sources = [s.attrs for s in ((client, engine) if alone else (engine, client)) if s is not None]
    merged: dict[str, Any] = {}
    for attrs in reversed(sources):
        merged.update({key: value for key, value in attrs.items() if value is not None})
    if not alone and engine is not None:
        client_only = dict.fromkeys(names.INPUT + names.OUTPUT + names.CACHED)
        merged.update({key: engine.attrs.get(key) for key in client_only})
    key = client.id if client is not None and alone else engine.id if engine is not None else ""
    out.calls.append(
        [key, tree.request, attempt, None, text(first(merged, names.MODEL)),
         text(merged.get("sojourn.pool")), None, *_tokens(merged), None, None,
         times.arrival, times.scheduled, first_token, times.end,
         None if first_token is None else str(origin),
         whole(merged.get("gen_ai.request.num_preemptions")),
         _worst(client, engine)]
    )  # fmt: skip
    out.replicas.append((_address(client), _instance(engine)))


def _client_times(span: Span | None) -> EngineTimes:
    if span is None:
        return EngineTimes(0, None, None, 0, ())
    waited = nanoseconds(first(span.attrs, names.FIRST_CHUNK))
    first_token = span.first_token if waited is None else span.true_start + waited
    return EngineTimes(span.true_start, None, first_token, span.true_end, ())


def _tokens(attrs: dict[str, Any]) -> tuple[int | None, ...]:
    return tuple(
        whole(first(attrs, keys))
        for keys in (
            names.INPUT,
            names.CACHED,
            names.OUTPUT,
            names.REASONING,
            names.IMAGE_TOKENS,
            names.IMAGES,
        )
    )


def _worst(client: Span | None, engine: Span | None) -> str:
    told = [status_of(span) for span in (client, engine) if span is not None]
    return next((status for status in told if status != Status.OK), str(Status.OK))


def _address(client: Span | None) -> str | None:
    if client is None:
        return None
    host = text(first(client.attrs, ("server.address", "net.peer.name")))
    port = whole(first(client.attrs, ("server.port", "net.peer.port")))
    return host if host is None or port is None else f"{host}:{port}"


def _instance(engine: Span | None) -> str | None:
    if engine is None:
        return None
    keys = ("k8s.pod.name", "service.instance.id", "host.name", "service.name")
    return text(first(engine.resource, keys))


def status_of(span: Span) -> str:
    """How a span ended: its error type, its HTTP status, else its status code."""
    attrs = span.attrs
    told = first(attrs, ("error.type", "exception.type"))
    code = whole(first(attrs, names.STATUS_CODE))
    if not span.error and told is None and (code is None or code < 400):
        return str(Status.OK)
    for word in (text(told), None if code is None else str(code), span.message):
        status = status_of_text(word) if word else str(Status.OK)
        if status not in (Status.OK, Status.ERROR):
            return status
    return str(Status.ERROR)


def _request_row(root: Span, tree: _Tree, *, ended: bool) -> list[Any]:
    found: dict[str, Any] = {}
    cost, has_cost = 0.0, False
    for span in walk(root):
        for column, keys in (("session", names.SESSION), ("tenant", names.TENANT)):
            if column not in found and (value := text(first(span.attrs, keys))):
                found[column] = value
        paid = number(first(span.attrs, names.COST))
        if paid is not None and 0 <= paid < 1e9:
            cost, has_cost = (paid, True) if span is root else (cost + paid, True)
            if span is root:
                break
    attrs = root.attrs
    tenant = found.get("tenant") or text(root.resource.get("k8s.namespace.name"))
    return [
        tree.request, found.get("session"), tenant, _route(root, tree),
        whole(attrs.get("sojourn.priority")), text(attrs.get("sojourn.risk")), root.start,
        root.end if ended else None, status_of(root) if ended else None,
        _degraded(attrs.get("sojourn.degraded")), truth(attrs.get("sojourn.success")),
        number(attrs.get("sojourn.quality")), max(1, len(tree.attempts)),
        cost if has_cost else None, text(attrs.get("sojourn.bucket")),
    ]  # fmt: skip


def _route(root: Span, tree: _Tree) -> str | None:
    route = text(first(root.attrs, names.ROUTE))
    if route is not None:
        return route.partition("?")[0]
    role = tree.roles[root.id][0]
    return None if role in (Role.CALL, Role.ENGINE) else text(root.name)


def _degraded(value: Raw) -> list[str] | None:
    if isinstance(value, list):
        return [word for item in value if (word := text(item))]
    word = text(value)
    return [part.strip() for part in word.split(",") if part.strip()] if word else None


def drop_foreign_routes(out: Rows, ledger: Ledger) -> None:
    """Leave out routes that never call a model nor visit a stage, when others do.

    Health checks and scrapes are traced like requests; they are counted here instead.
    """
    route_of = {row[0]: row[3] for row in out.requests}
    used = {route_of[row[1]] for row in out.calls}
    used |= {route_of[row[1]] for row in out.spans if row[4] is not None}
    if not out.calls:
        return
    foreign = {key for key, route in route_of.items() if route not in used and route is not None}
    if not foreign:
        return
    routes = sorted({str(route_of[key]) for key in foreign})
    gone = sum(row[1] in foreign for row in out.spans)
    ledger.drop("span of a route that never calls a model", gone, ", ".join(routes))
    out.requests = [row for row in out.requests if row[0] not in foreign]
    out.spans = [row for row in out.spans if row[1] not in foreign]


def number_turns(out: Rows) -> None:
    """Order of the calls within each attempt."""
    groups: dict[tuple[str, int | None], list[list[Any]]] = defaultdict(list)
    for row in out.calls:
        groups[(row[1], row[2])].append(row)
    for rows in groups.values():
        rows.sort(key=lambda row: row[ARRIVAL_OF_CALL])
        for turn, row in enumerate(rows):
            row[3] = turn


def name_replicas(out: Rows) -> None:
    """The address asked names the replica, unless several instances answer behind it."""
    behind: dict[str | None, set[str]] = defaultdict(set)
    for address, instance in out.replicas:
        if instance is not None:
            behind[address].add(instance)
    out.instances = {
        address: next(iter(instances))
        for address, instances in behind.items()
        if address is not None and len(instances) == 1
    }
    for row, (address, instance) in zip(out.calls, out.replicas, strict=True):
        shared = len(behind[address]) > 1
        row[6] = (instance or address) if shared or address is None else address
