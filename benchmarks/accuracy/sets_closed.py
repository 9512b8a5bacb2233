"""Loaders of the closed-loop, static and single-figure sets, by name of the set.

Each reads its file in the folder `ground_truth` and turns it into rows; what cannot be used is
counted by its reason. A hidden file of the same format, with other models and cards, goes through
the same loader: a name the catalogue does not have stays as it is, and the row is refused later.
"""

from __future__ import annotations

from typing import Final

from .rows import Loader
from .sets_closed_anchors import anchors, kv_pools
from .sets_closed_serving import cookbook, ml_energy, token_position, trtllm_maximum
from .sets_closed_silicon import silicon
from .sets_closed_static import argonne, dstack, splitwise

LOADERS: Final[dict[str, Loader]] = {
    "silicon sample": silicon,
    "token position": token_position,
    "SGLang cookbook": cookbook,
    "ML.ENERGY": ml_energy,
    "TensorRT-LLM maximum": trtllm_maximum,
    "Splitwise": splitwise,
    "Argonne": argonne,
    "dstack": dstack,
    "anchors": anchors,
    "KV pools": kv_pools,
}
