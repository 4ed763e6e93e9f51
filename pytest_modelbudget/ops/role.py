"""What an operand of an operation is: declared where a rule names it, never guessed from a word."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_modelbudget.errors import ExtensionError


@dataclass(frozen=True, slots=True)
class Role:
    """What one operand is, under the word by which formulas ask for it.

    Without a flag it is an activation, and where it is stored a constant of the program.

    weight: a weight of the model where it is stored, in whatever type.
    learnt: an activation, and where it is stored and floating a weight: an operand of x + y.
    shape: how large or where the result is; worked out before the run.
    statistic: a running statistic, stored with the model and no parameter.
    quantises: the role of the operand whose scale or zero point it is.
    carried: handed on as it is: what reads the first result (every one where into_all) decides.

    added: added, so that values of 0 and −inf alone make it a mask.
    scales: multiplies or divides where it is a vector: values around 1 are usual, around 0 hide.
    dequantised: carried, and floating from there on.
    packed: attributes whose product is its number of logical elements.
    declared: whether anybody said what it is. A plain word in an extension's rule says nothing: a
        floating tensor that is stored for it leaves the model's weights unknown.

    Raises ExtensionError where it is several things at once.
    """

    name: str
    weight: bool = False
    learnt: bool = False
    shape: bool = False
    statistic: bool = False
    quantises: str = ""
    carried: bool = False
    into_all: bool = False
    added: bool = False
    scales: bool = False
    dequantised: bool = False
    packed: tuple[str, ...] = ()
    declared: bool = True

    def __post_init__(self) -> None:
        kinds = ("weight", "learnt", "shape", "statistic", "quantises", "carried")
        claims = [kind for kind in kinds if getattr(self, kind)]
        if len(claims) > 1:
            raise ExtensionError(f"role '{self.name}' is {' and '.join(claims)}: only one can hold")

    @property
    def word(self) -> str:
        """Its name without the star of a role that takes all remaining operands."""
        return self.name.lstrip("*")


UNDECLARED = Role("", declared=False)  # of operands that no rule names
WEIGHT = Role("weight", weight=True, scales=True)
BIAS = Role("bias", weight=True)
MEAN = Role("mean", statistic=True)
VARIANCE = Role("variance", statistic=True, scales=True)
# Operands of a product of two, either of which may be stored.
X, Y, PARTS = (Role(name, learnt=True) for name in ("x", "y", "*parts"))
CARRIED = Role("x", carried=True)
CARRIED_PARTS = Role("*parts", carried=True)
