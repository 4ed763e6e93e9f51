"""Node ids: where a model, a transform or a check stands, parsed and written in this one place.

"budgets/vision.yaml::resnet18::tiled::macs@layer4.*" drawn once::

    Address("budgets/vision.yaml", ("resnet18", "tiled", "macs@layer4.*"))

The text does not say whether a name is a variant's, a transform's or a check's: who asks knows.
"""

from __future__ import annotations

from dataclasses import dataclass

BETWEEN = "::"


@dataclass(frozen=True, slots=True)
class Address:
    """A budget file as seen from rootdir, and the names that lead to something in it."""

    file: str
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, node_id: str) -> Address:
        """The address that a node id spells."""
        file, *names = node_id.split(BETWEEN)
        return cls(file, tuple(names))

    def __str__(self) -> str:
        return path_of(self.file, *self.names)

    def __truediv__(self, name: str) -> Address:
        """What stands below it under a name, or under a path of several: model / "macs"."""
        return Address(self.file, (*self.names, *names_of(name)))

    @property
    def above(self) -> Address:
        """What it is a part of: a check's model or transform, a transform's model."""
        return Address(self.file, self.names[:-1])

    @property
    def path(self) -> str:
        """Its names within the file: "resnet18::tiled"."""
        return path_of(*self.names)

    @property
    def name(self) -> str:
        """Its own name, which is the last one: "macs@layer4.*"."""
        return self.names[-1] if self.names else ""

    @property
    def metric(self) -> str:
        """The metric that a check of that name is on: "macs"."""
        return self.name.partition("@")[0]

    @property
    def title(self) -> str:
        """Its names as people read them: "resnet18 / tiled / macs@layer4.*"."""
        return " / ".join(self.names)


def path_of(*names: str) -> str:
    """Names one below the other as one path: "resnet18::tiled"."""
    return BETWEEN.join(names)


def names_of(path: str) -> tuple[str, ...]:
    """The names that a path is made of."""
    return tuple(path.split(BETWEEN)) if path else ()
