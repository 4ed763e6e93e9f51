"""Sequences, optionals, text and bodies: what the data decide, and losses over whole batches."""

from __future__ import annotations

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.ops.op_rule import OpRule, free, under

HANDED_ON = "tensors are handed on or copied as they are, nothing is computed"


def as_often_as_data_say() -> int:
    """Raises: how often the body runs is not known before the run."""
    raise UnmeasurableError("its body runs as often as the data say")


def _body(kind: str, name: str, because: str) -> OpRule:
    """A node whose body is written out where its count is known, and unmeasured where it is not."""
    return OpRule(
        kind, under(name, "*parts"), because, macs=None, flops=None, writes=as_often_as_data_say
    )


CONTAINERS: tuple[OpRule, ...] = (
    free(
        "sequence",
        under(
            "onnx::SequenceAt onnx::SequenceConstruct onnx::SequenceEmpty onnx::SequenceErase "
            "onnx::SequenceInsert onnx::SequenceLength onnx::ConcatFromSequence "
            "onnx::SplitToSequence",
            "*parts",
        ),
        HANDED_ON,
    ),
    free(
        "optional",
        under("onnx::Optional onnx::OptionalGetElement onnx::OptionalHasElement", "x"),
        HANDED_ON,
    ),
    _body("loop", "onnx::Loop", "its trip count is not known before the run"),
    _body("loop", "onnx::Scan", "the length that it scans is not known before the run"),
    _body("if", "onnx::If", "neither of its branches could be read"),
    _body("loop", "onnx::SequenceMap", "its body runs once per entry of a sequence"),
    OpRule(
        "text",
        under(
            "onnx::StringConcat onnx::StringNormalizer onnx::StringSplit onnx::RegexFullMatch "
            "onnx::TfIdfVectorizer",
            "*parts",
        ),
        "text is compared, cut and counted: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "image_decoder",
        under("onnx::ImageDecoder", "x"),
        "a decoder of compressed pictures: no contraction of tensors",
        flops=None,
    ),
    OpRule(
        "loss",
        under(
            "onnx::SoftmaxCrossEntropyLoss onnx::NegativeLogLikelihoodLoss", "x", "target", "scale"
        ),
        "one chosen logarithm per row, weighted and added up: no pairs are contracted",
        flops=None,
    ),
    OpRule(
        "determinant",
        under("onnx::Det com.microsoft::Inverse", "x"),
        "an elimination whose products depend on the kernel: no closed form holds for all",
        macs=None,
        flops=None,
    ),
)
