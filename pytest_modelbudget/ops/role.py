"""What an operand of an operation is: declared where a rule names it, never guessed from a word."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_modelbudget.errors import ExtensionError


@dataclass(frozen=True, slots=True)
class Role:
    """What one operand is, under the word by which formulas ask for it.

    Without a flag it is an activation, and where it is stored a constant of the program: a window, a scale of x.

    weight: a weight of the model where it is stored, in whatever type.
    learnt: an activation, and where it is stored and floating a weight: an operand of x + y. Every plain word of the
        project's own rules, since what a program stores and computes with may have been trained.
    shape: how large or where the result is; worked out before the run.
    statistic: a running statistic, stored with the model and no parameter.
    quantises: the role of the operand whose scale or zero point it is.
    carried: handed on as it is: what reads the first result (every one where into_all) decides.
    picked: a table, whose rows are handed on: where it stores integers, what reads the first result decides, too.

    masks: added to scores or chosen for them, so that values of 0 and −inf alone make it a mask.
    starts: what a recurrence starts with, or a scatter writes into: zeros alone are what every framework starts with.
    scales: multiplies or divides where it is a vector: values around 1 are usual, around 0 hide.
    neutral: the value that changes nothing there, which exporters write out for a norm that learns none.
    dequantised: carried, and floating from there on.
    unread: no value of it is read: it lends its shape or type, or is overwritten.
    packed: attributes whose product is its number of logical elements.
    bits: the attribute, those that say it where that is not there, and the default, of how many bits of a byte a
        logical element takes.
    attribute: the name of a list or a tensor that a node of ONNX holds itself, in place of an input; behind all inputs.
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
    picked: bool = False
    masks: bool = False
    starts: bool = False
    scales: bool = False
    neutral: float | None = None
    dequantised: bool = False
    unread: bool = False
    packed: tuple[str, ...] = ()
    bits: tuple[str | int, ...] = ()
    attribute: str = ""
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


def logical_bits(role: Role, attributes: Mapping[str, object]) -> int:
    """How many bits a logical element takes, of an operand whose bytes hold several."""
    *names, default = role.bits
    return int(str(next((attributes[str(name)] for name in names if name in attributes), default)))


def roles(words: str, **facts: Any) -> tuple[Role, ...]:
    """Several roles of which the same is true: ``roles("query key", learnt=True)``."""
    return tuple(Role(word, **facts) for word in words.split())


def shapes(words: str) -> tuple[Role, ...]:
    """Roles of operands that say how large or where the result is."""
    return roles(words, shape=True)


def learnt_attributes(words: str) -> tuple[Role, ...]:
    """Roles of what a node of ``ai.onnx.ml`` was trained to, and holds itself."""
    return tuple(Role(word, weight=True, attribute=word) for word in words.split())


def linking_attributes(words: str) -> tuple[Role, ...]:
    """Roles of the further attributes of such a node: how nodes of trees are linked, and which leaf gives to what."""
    return tuple(Role(word, attribute=word) for word in words.split())


UNDECLARED = Role("", declared=False)  # of operands that no rule names
WEIGHT = Role("weight", weight=True, scales=True)
BIAS = Role("bias", weight=True)
NORM_SCALE = Role("weight", weight=True, scales=True, neutral=1.0)
NORM_SHIFT = Role("bias", weight=True, neutral=0.0)
LAYER: tuple[str | Role, ...] = ("x", NORM_SCALE, NORM_SHIFT)
SLOPE = Role("slope", weight=True, scales=True)
MEAN = Role("mean", statistic=True)
VARIANCE = Role("variance", statistic=True, scales=True)
NORM = (*LAYER, MEAN, VARIANCE)
# Operands of a product of two, either of which may be stored.
X, Y, PARTS = roles("x y *parts", learnt=True)
TABLE = Role("x", learnt=True, picked=True)
CARRIED, CARRIED_PARTS = roles("x *parts", carried=True)
# The target of a copy or fill is written and not read.
LIKE, TARGET, OVERWRITTEN = roles("like target x", unread=True)
SCALE, ZERO_POINT = roles("scale zero_point", quantises="x")
WEIGHT_SCALES = roles("weight_scale weight_zero_point", quantises="weight")
WEIGHT_SCALE, WEIGHT_ZERO_POINT = WEIGHT_SCALES
# Of activations, and so constants.
X_SCALES, OUT_SCALES = roles("x_scale x_zero_point"), roles("out_scale out_zero_point")
X_SCALE, X_ZERO_POINT = X_SCALES
