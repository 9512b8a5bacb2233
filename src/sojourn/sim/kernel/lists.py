"""Lists of calls in a replica: waiting (one per priority level), running, unfinished prompts."""

from __future__ import annotations

from sojourn.sim.kernel.arrays import calls, levels, pools, replicas
from sojourn.sim.kernel.compiled import Number, World, compiled
from sojourn.sim.kernel.state import NIL


@compiled
def _slot(w: World, c: Number) -> Number:
    """Where `levels` holds the first and last of c's list."""
    call = calls(w)[c]
    return 2 * (call.replica * w.level_count + call.level)


@compiled
def first_waiting(w: World, r: Number) -> Number:
    """Who is admitted next; NIL if nobody waits."""
    heads = levels(w)
    base = 2 * r * w.level_count
    for level in range(w.level_count):
        head = heads[base + 2 * level]
        if head != NIL:
            return head + 0
    return NIL


@compiled
def _count_waiting(w: World, c: Number, change: Number) -> None:
    call = calls(w)[c]
    replicas(w)[call.replica].waiting += change
    pools(w)[call.pool].waiting += change


@compiled
def wait_behind(w: World, c: Number, after: Number) -> None:
    """Put c into its list behind `after`; NIL: in front of all."""
    table, heads, slot = calls(w), levels(w), _slot(w, c)
    call = table[c]
    follower = heads[slot] if after == NIL else table[after].after
    call.before, call.after = after, follower
    if after == NIL:
        heads[slot] = c
    else:
        table[after].after = c
    if follower == NIL:
        heads[slot + 1] = c
    else:
        table[follower].before = c
    _count_waiting(w, c, 1)


@compiled
def wait_last(w: World, c: Number) -> None:
    """Put c at the end of its list."""
    wait_behind(w, c, levels(w)[_slot(w, c) + 1])


@compiled
def wait_by_number(w: World, c: Number) -> None:
    """Put c, which was preempted, where its queue number belongs."""
    table = calls(w)
    number = table[c].number
    behind = NIL
    at = levels(w)[_slot(w, c)]
    while at != NIL and table[at].number < number:
        behind = at
        at = table[at].after
    wait_behind(w, c, behind)


@compiled
def stop_waiting(w: World, c: Number) -> None:
    """Take c out of its list."""
    table, heads, slot = calls(w), levels(w), _slot(w, c)
    call = table[c]
    if call.before == NIL:
        heads[slot] = call.after
    else:
        table[call.before].after = call.after
    if call.after == NIL:
        heads[slot + 1] = call.before
    else:
        table[call.after].before = call.before
    _count_waiting(w, c, -1)


@compiled
def run_last(w: World, c: Number) -> None:
    """Admit c as the last of the running, with an unfinished prompt."""
    table = calls(w)
    call = table[c]
    replica = replicas(w)[call.replica]
    call.before, call.after = replica.run_last, NIL
    if replica.run_last == NIL:
        replica.run_first = c
    else:
        table[replica.run_last].after = c
    replica.run_last = c
    replica.running += 1
    replica.turns += 1
    call.turn = replica.turns
    call.prompt_before, call.prompt_after = replica.prompt_last, NIL
    if replica.prompt_last == NIL:
        replica.prompt_first = c
    else:
        table[replica.prompt_last].prompt_after = c
    replica.prompt_last = c


@compiled
def stop_running(w: World, c: Number) -> None:
    """Take c out of the running."""
    table = calls(w)
    call = table[c]
    replica = replicas(w)[call.replica]
    if call.before == NIL:
        replica.run_first = call.after
    else:
        table[call.before].after = call.after
    if call.after == NIL:
        replica.run_last = call.before
    else:
        table[call.after].before = call.before
    replica.running -= 1


@compiled
def stop_prompting(w: World, c: Number) -> None:
    """Take c out of the unfinished prompts."""
    table = calls(w)
    call = table[c]
    replica = replicas(w)[call.replica]
    if call.prompt_before == NIL:
        replica.prompt_first = call.prompt_after
    else:
        table[call.prompt_before].prompt_after = call.prompt_after
    if call.prompt_after == NIL:
        replica.prompt_last = call.prompt_before
    else:
        table[call.prompt_after].prompt_before = call.prompt_before
