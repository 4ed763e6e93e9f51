"""Classical learners of ``ai.onnx.ml``, and what ONNX prepares data with: scalers, labels, text and pictures.

Linear models are contractions; trees only compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops.dense import bias_flops, linear
from pytest_modelbudget.ops.elementwise import one_each
from pytest_modelbudget.ops.role import BIAS, CARRIED_PARTS, WEIGHT, Role, learnt_attributes, linking_attributes
from pytest_modelbudget.ops.rule import Attributes, Contraction, Maybe, OpRule, Over, free, under

COEFFICIENTS = replace(WEIGHT, attribute="coefficients")
LABELS = ("classlabels_ints", "classlabels_strings")
AFTER = {"NONE": 0, "SOFTMAX": 5, "LOGISTIC": 1}  # FLOPs per score of what post_transform makes of them
INTERCEPTS = replace(BIAS, attribute="intercepts")
# Of an ensemble in lists: how its nodes are linked, and which leaf gives to which target.
NODES = linking_attributes(
    "nodes_treeids nodes_nodeids nodes_featureids nodes_truenodeids nodes_falsenodeids "
    "nodes_missing_value_tracks_true nodes_hitrates nodes_hitrates_as_tensor"
)
THRESHOLDS = learnt_attributes("nodes_values nodes_values_as_tensor base_values base_values_as_tensor")
# Of one in tensors, as operator set 5 has it.
LINKS = linking_attributes(
    "nodes_featureids nodes_truenodeids nodes_falsenodeids nodes_trueleafs nodes_falseleafs "
    "nodes_missing_value_tracks_true nodes_modes nodes_hitrates leaf_targetids tree_roots"
)


def leaves(kind: str) -> tuple[Role, ...]:
    """What leaves give to classes or targets, and to which."""
    weights = learnt_attributes(f"{kind}_weights {kind}_weights_as_tensor")
    return *linking_attributes(f"{kind}_treeids {kind}_nodeids {kind}_ids"), *weights


def chosen_nodes(*, x: Tensor) -> Mapping[str, int]:
    """Raise UnmeasurableError: rows of x take different paths through the trees."""
    raise UnmeasurableError("which nodes of its trees it reads, the data decide")


def in_targets(shape: Sequence[int], attributes: Attributes) -> int:
    """Coefficients in one list (targets · features,): those of one target.

    There are as many targets as intercepts. A classifier without any has one for each label, but for two labels, which
    one score tells apart.
    """
    said = (attributes.get(name) for name in ("intercepts", *LABELS))
    held = next((len(each) for each in said if isinstance(each, Sequence) and each), 0)
    if held and (held > 2 or attributes.get("intercepts")):
        return shape[0] // held
    return shape[0] // max(int(str(attributes.get("targets", 1))), 1)


def linear_model_macs(*, x: Tensor, weight: Maybe) -> int:
    """Each row of x (n, k) or (k,) meets every coefficient."""
    if weight is None:
        raise UnmeasurableError("the node holds no coefficients")
    rows = x.shape[0] if len(x.shape) > 1 else 1
    return rows * weight.elements


def linear_model_flops(
    *, x: Tensor, weight: Maybe, outputs: tuple[Tensor, ...], attributes: Attributes, bias: Maybe = None
) -> int:
    """One addition per score where there are intercepts, and for labels one comparison per score, as of ArgMax.

    What follows costs what it does as an operator. Raises UnmeasurableError for what has no figure, and where a single
    score decides between two classes.
    """
    *labels, scores = outputs
    after = str(attributes.get("post_transform", "NONE"))
    if after not in AFTER:
        raise UnmeasurableError(f"convention flops/1 has no figure for {after}")
    if labels and not _has_score_of_each(x, weight, scores):
        raise UnmeasurableError("convention flops/1 has no figure for labels of a single score")
    return bias_flops(out=scores, bias=bias) + (len(labels) + AFTER[after]) * scores.elements


def _has_score_of_each(x: Tensor, weight: Maybe, scores: Tensor) -> bool:
    """Whether each class has coefficients of its own, so that its score is a product and the largest decides."""
    classes = scores.shape[-1] if scores.shape else 0
    return weight is not None and classes > 1 and weight.elements == classes * x.shape[-1]


COEFFICIENTS_OF = Contraction(Over.FEATURES, ("x", "weight"), fan_in=in_targets)
CLASSICAL: tuple[OpRule, ...] = (
    linear(
        under("ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor", "x", COEFFICIENTS, INTERCEPTS),
        "one multiply-add per row and coefficient; the largest score is the label",
        of=COEFFICIENTS_OF,
        macs=linear_model_macs,
        flops=linear_model_flops,
    ),
    OpRule(
        "support_vectors",
        under(
            "ai.onnx.ml::SVMClassifier ai.onnx.ml::SVMRegressor",
            "x",
            learnt_attributes("support_vectors coefficients rho prob_a prob_b"),
            linking_attributes("vectors_per_class"),
        ),
        "a kernel over support vectors, some of them contractions: not measured in this version",
        macs=None,
        flops=None,
    ),
    OpRule(
        "trees",
        under("ai.onnx.ml::TreeEnsembleClassifier", "x", NODES, THRESHOLDS, leaves("class"))
        | under("ai.onnx.ml::TreeEnsembleRegressor", "x", NODES, THRESHOLDS, leaves("target"))
        | under(
            "ai.onnx.ml::TreeEnsemble", "x", LINKS, learnt_attributes("nodes_splits membership_values leaf_weights")
        ),
        "comparisons along paths that the data choose: nothing is contracted",
        flops=None,
        reads=chosen_nodes,
    ),
    one_each(
        "scaler",
        under("ai.onnx.ml::Scaler", "x", learnt_attributes("offset scale")),
        "a shift and a scale, element by element",
    ),
    one_each(
        "normaliser", under("ai.onnx.ml::Normalizer", "x"), "entries divided by their norm: no pairs are contracted"
    ),
    one_each(
        "comparison",
        under("ai.onnx.ml::Binarizer", "x")
        | under("ai.onnx.ml::Imputer", "x", learnt_attributes("imputed_value_floats imputed_value_int64s")),
        "one comparison per element",
    ),
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
    OpRule(
        "text",
        under("StringConcat StringNormalizer StringSplit RegexFullMatch", "*parts")
        | under("TfIdfVectorizer", "x", learnt_attributes("weights")),
        "text is compared, cut and counted: nothing is contracted",
        flops=None,
    ),
    OpRule(
        "image_decoder",
        under("ImageDecoder", "x"),
        "a decoder of compressed pictures: no contraction of tensors",
        flops=None,
    ),
)
