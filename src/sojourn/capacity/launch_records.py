"""`Launch`: what a command line or a manifest says of an engine, and where each part was found."""

from __future__ import annotations

from pydantic import Field

from sojourn.capacity.launch_flags import Value
from sojourn.records import Record


class Flag(Record):
    """One flag: sojourn's name for it, as it was spelled, its value, and where it stands."""

    name: str
    spelled: str
    value: Value
    where: str


class Launch(Record):
    """An engine as it is started.

    `flags` matter and are understood; `unknown` are spelled like flags and are not known;
    `unresolved` hold a variable whose value the text does not tell. Later flags win over earlier
    ones, as they do for the engine.
    """

    engine: str | None = Field(None, description="vllm, sglang or trtllm.")
    version: str | None = Field(None, description="Where an image tag tells it.")
    image: str | None = None
    name: str = Field("", description="Kind and name in a manifest.")
    where: str = ""
    flags: tuple[Flag, ...] = ()
    unknown: tuple[Flag, ...] = ()
    unresolved: tuple[Flag, ...] = ()
    gpus: int | None = Field(None, description="Accelerators of one replica.")
    replicas: int | None = None
    accelerator: str | None = Field(None, description="Product named by a node selector.")
    notes: tuple[str, ...] = ()

    def flag(self, name: str) -> Flag | None:
        """The flag of this name that is in force."""
        found = [f for f in self.flags if f.name == name]
        return found[-1] if found else None

    def number(self, name: str) -> float | None:
        """Its value as a number, or None."""
        found = self.flag(name)
        if found is None or isinstance(found.value, bool | str):
            return None
        return float(found.value)

    def truth(self, name: str) -> bool | None:
        """Its value as a switch, or None."""
        found = self.flag(name)
        return found.value if found is not None and isinstance(found.value, bool) else None

    def text(self, name: str) -> str | None:
        """Its value as text, or None."""
        found = self.flag(name)
        return found.value if found is not None and isinstance(found.value, str) else None

    @property
    def model(self) -> str | None:
        """Name or path of the model."""
        return self.text("model")
