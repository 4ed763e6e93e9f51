"""Work that no operator shows: bodies that run as often as the data say, values that leave torch."""

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.ops.rule import OpRule, under

LEFT = "values leave torch here: what is computed with them is not seen"


def unseen() -> int:
    """Work on values outside torch moves bytes that no operator shows."""
    raise UnmeasurableError(LEFT)


def as_often_as_data_say() -> int:
    """Raises: how often the body runs is not known before the run."""
    raise UnmeasurableError("its body runs as often as the data say")


def _body(kind: str, name: str, because: str) -> OpRule:
    """A node whose body is written out where its count is known, and unmeasured where it is not."""
    names = under(name, "*parts")
    return OpRule(kind, names, because, macs=None, flops=None, writes=as_often_as_data_say)


UNSEEN: tuple[OpRule, ...] = (
    _body("loop", "Loop", "its trip count is not known before the run"),
    _body("loop", "Scan", "the length that it scans is not known before the run"),
    _body("if", "If", "neither of its branches could be read"),
    _body("loop", "SequenceMap", "its body runs once per entry of a sequence"),
    OpRule(
        "leaves_torch",
        under(
            "torch::numpy torch::__array__ torch::__dlpack__ torch::to_dlpack torch::data_ptr torch::tolist "
            "torch::untyped_storage torch::storage "
            "torch::item torch::from_numpy torch::__iter__ torch::__getitem__",
            "x",
        ),
        LEFT,
        macs=None,
        flops=None,
        writes=unseen,
    ),
)
