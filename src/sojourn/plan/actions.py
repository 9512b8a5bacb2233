"""`ACTIONS`: everything the planner can propose, over the six layers.

Every action is called for by a verdict, simulated on this workload and priced; those that the
simulator does not serve yet are listed too and refuse themselves, so that their absence from the
ranking is no silence.
"""

from __future__ import annotations

from typing import Final

from sojourn.plan.action import Action
from sojourn.plan.cache_layer import CACHE_ACTIONS, KERNEL_ACTIONS
from sojourn.plan.gateway_layer import GATEWAY_ACTIONS
from sojourn.plan.model_layer import MODEL_ACTIONS
from sojourn.plan.request_layer import REQUEST_ACTIONS
from sojourn.plan.scheduling_layer import SCHEDULING_ACTIONS
from sojourn.plan.system_layer import SYSTEM_ACTIONS

ACTIONS: Final[tuple[Action, ...]] = (
    *REQUEST_ACTIONS,
    *SCHEDULING_ACTIONS,
    *MODEL_ACTIONS,
    *CACHE_ACTIONS,
    *KERNEL_ACTIONS,
    *SYSTEM_ACTIONS,
    *GATEWAY_ACTIONS,
)


def action(name: str) -> Action:
    """An action by its name.

    Raises:
        KeyError: no such action.
    """
    return {item.name: item for item in ACTIONS}[name]
