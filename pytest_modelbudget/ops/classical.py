"""Classical learners of ``ai.onnx.ml``: linear models are contractions, trees only compare."""

from collections.abc import Sequence

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.elementwise import one_each
from pytest_modelbudget.ops.role import CARRIED_PARTS
from pytest_modelbudget.ops.rule import Attributes, Contraction, OpRule, Over, free, under


def linear_model_macs(*, x: Tensor, attributes: Attributes) -> int:
    """Each row of x (n, k) or (k,) meets every coefficient, which the node itself holds."""
    coefficients = attributes.get("coefficients")
    if not isinstance(coefficients, Sequence):
        raise UnmeasurableError("the node holds no coefficients")
    rows = x.shape[0] if len(x.shape) > 1 else 1
    return rows * len(coefficients)


CLASSICAL: tuple[OpRule, ...] = (
    OpRule(
        "linear",
        under("ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor", "x"),
        "one multiply-add per row and coefficient; what turns scores into labels is not in flops/1",
        macs=linear_model_macs,
        contracts=Contraction(Over.FEATURES, ("x",)),
        flops=None,
    ),
    OpRule(
        "support_vectors",
        under("ai.onnx.ml::SVMClassifier ai.onnx.ml::SVMRegressor", "x"),
        "a kernel over support vectors, some of them contractions: not measured in this version",
        macs=None,
        flops=None,
    ),
    OpRule(
        "trees",
        under("ai.onnx.ml::TreeEnsemble ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsembleRegressor", "x"),
        "comparisons along paths that the data choose: nothing is contracted",
        flops=None,
    ),
    one_each("scaler", under("ai.onnx.ml::Scaler", "x"), "a shift and a scale, element by element"),
    one_each(
        "normaliser", under("ai.onnx.ml::Normalizer", "x"), "entries divided by their norm: no pairs are contracted"
    ),
    one_each("comparison", under("ai.onnx.ml::Binarizer ai.onnx.ml::Imputer", "x"), "one comparison per element"),
    free("cat", under("ai.onnx.ml::FeatureVectorizer", CARRIED_PARTS), "columns are put side by side"),
    free(
        "labels",
        under(
            "ai.onnx.ml::CastMap ai.onnx.ml::CategoryMapper ai.onnx.ml::DictVectorizer "
            "ai.onnx.ml::LabelEncoder ai.onnx.ml::OneHotEncoder ai.onnx.ml::ZipMap",
            "x",
        ),
        "entries are looked up or renamed, nothing is computed",
    ),
)
