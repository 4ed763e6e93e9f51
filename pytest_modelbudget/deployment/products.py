"""Each operation as the matrix products that it multiplies: what an array of multipliers runs.

A product is M×K×N: m rows of the input, k summed elements, n columns of the weight. The table goes by the formula that
counts an operation's MACs, so that one line serves all its names, torch's and ONNX's alike.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from math import prod
from types import MappingProxyType

from pytest_modelbudget.deployment.array import Product
from pytest_modelbudget.errors import UnmeasurableError
from pytest_modelbudget.graph.graph import Op
from pytest_modelbudget.graph.tensor import Tensor
from pytest_modelbudget.ops import attention, classical, convolution, dense, elementwise, pooling
from pytest_modelbudget.ops.rule import Attributes, Formula, Maybe, nothing
from pytest_modelbudget.ops.table import OpTable

Products = tuple[Product, ...]


def products(op: Op, rules: OpTable) -> Products:
    """The products of one operation, in all its executions; none where it multiplies nothing.

    Their MACs are the operation's. Raises UnmeasurableError where it has MACs, or may have, whose products are not
    known: those of a recurrent layer wait for one another.
    """
    rule = rules.get(op.name)
    if rule is None:
        raise UnmeasurableError("no rule")
    if op.is_view or op.is_shape_computation or rule.macs is nothing:
        return ()
    if rule.macs is None or op.unsized:
        raise UnmeasurableError(op.unsized or rule.because)
    bound = rule.bind(op)
    macs = rule.evaluate(rule.macs, op, bound)
    if not macs:
        return ()
    if rule.macs not in FORMULAS:
        raise UnmeasurableError(f"no matrix product is known of {rule.kind}, which has MACs")
    made = rule.evaluate(FORMULAS[rule.macs], op, bound)
    if sum(product.macs for product in made) != macs:
        raise UnmeasurableError(f"its operands are not those of a matrix product: {rule.kind} of {macs} MACs")
    return tuple(Product(p.m, p.k, p.n, p.count * op.times) for p in made if op.times)


# What each formula of MACs counts.


def _convolution(*, x: Tensor, weight: Tensor, out: Tensor, attributes: Attributes) -> Products:
    """By im2col: a row for each output position, the weights of a filter, the filters; once for each group."""
    groups = convolution.groups(x=x, weight=weight, out=out, attributes=attributes)
    filters = weight.shape[0]
    return (Product(out.elements // filters, prod(weight.shape[1:]), filters // groups, groups),)


def _transposed_convolution(*, x: Tensor, weight: Tensor, out: Tensor) -> Products:
    """The same turned round: a row for each input position, its channels, and a column for each weight of a filter.

    x (batch, channels, ...), weight (channels, out channels / groups, kernel ...).
    """
    channels, columns = weight.shape[0], prod(weight.shape[1:])
    groups = out.shape[1 - len(weight.shape)] // weight.shape[1]
    return (Product(x.elements // channels, channels // groups, columns, groups),)


def _either_convolution(*, x: Tensor, weight: Tensor, out: Tensor, attributes: Attributes) -> Products:
    if attributes.get("transposed"):
        return _transposed_convolution(x=x, weight=weight, out=out)
    return _convolution(x=x, weight=weight, out=out, attributes=attributes)


def _time_first(*, weight: Tensor, out: Tensor) -> Products:
    kernel, channels, filters = weight.shape
    return (Product(out.elements // filters, kernel * channels, filters),)


def _matrix_product(
    *, x: Tensor, out: Tensor, attributes: Attributes, y: Maybe = None, weight: Maybe = None
) -> Products:
    """Rows × k × columns: x (..., k) · y (k, n), or once for each matrix of y (..., k, n). A vector is one column."""
    by = y if y is not None else weight
    assert by is not None  # the roles of a product of two
    k = dense.contracted_size(x, attributes) if x.shape else 1
    columns = out.shape[-1] if len(by.shape) > 1 else 1
    batch = prod(out.shape[: -2 if len(x.shape) > 1 else -1]) if len(by.shape) > 2 and k in by.shape[-2:] else 1
    return (Product(out.elements // max(columns * batch, 1), k * x.dtype.values, columns, batch),)


def _inner(*, x: Tensor, out: Tensor) -> Products:
    k = x.shape[-1] if x.shape else 1
    rows = x.elements // k
    return (Product(rows, k, out.elements // rows),)


def _batch_sum(*, x: Tensor, y: Tensor) -> Products:
    """addbmm: x (b, n, k) · y (b, k, m), once for each matrix."""
    batch, rows, k = x.shape
    return (Product(rows, k, y.shape[-1], batch),)


def _grouped(*, x: Tensor, y: Tensor, out: Tensor) -> Products:
    if min(len(x.shape), len(y.shape)) < 3:
        raise UnmeasurableError("how many rows each group has is in the data")
    return (Product(x.shape[-2], x.shape[-1] * x.dtype.values, y.shape[-1], x.shape[0]),)


def _bilinear(*, x: Tensor, y: Tensor, weight: Tensor) -> Products:
    """rows × i × (o·j), then o × j × 1 for each row."""
    rows = prod(x.shape[:-1])
    features, in1, in2 = weight.shape
    return Product(rows, in1, features * in2), Product(features, in2, 1, rows)


def _einsum(*, parts: tuple[Tensor, ...], attributes: Attributes) -> Products:
    steps = dense.einsum_steps(parts, attributes)
    return tuple(Product(step.rows, step.summed, step.columns, step.batch) for step in steps if step.contracts)


def _linear_model(*, x: Tensor, weight: Tensor) -> Products:
    """x (rows, features) and weight (classes · features)."""
    features = x.shape[-1]
    return (Product(x.elements // features, features, weight.elements // features),)


def _affine(*, theta: Tensor, out: Tensor) -> Products:
    """theta (n, r, r + 1) for each position of out (n, ..., r), the images one after another."""
    images, rank, k = theta.shape
    return (Product(out.elements // (images * rank), k, rank, images),)


def _two_products(scores: attention.Scores) -> Products:
    """Queries × e × keys, then queries × keys × v; each head of each image by itself."""
    s = scores
    return Product(s.queries, s.e, s.keys, s.heads), Product(s.queries, s.keys, s.v, s.heads)


def _of_scores(formula: Callable[..., attention.Scores]) -> Callable[..., Products]:
    @wraps(formula)  # it asks for the same operands
    def two_products(**operands: object) -> Products:
        return _two_products(formula(**operands))

    return two_products


def _attention(*, query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> Products:
    heads, queries = prod(out.shape[:-2]), out.shape[-2]
    return _two_products(attention.Scores(heads, queries, key.shape[-2], query.shape[-1], value.shape[-1]))


def _native_attention(*, query: Tensor, key: Tensor, value: Tensor, attributes: Attributes) -> Products:
    """Four projections of d × d around the two products of each head."""
    d, heads = (int(str(attributes[word])) for word in ("embed_dim", "num_head"))
    batch, queries = query.shape[:2]
    projections = [Product(t.elements // d, d, d) for t in (query, key, value, query)]
    scores = attention.Scores(batch * heads, queries, key.shape[1], d // heads, d // heads)
    return (*projections, *_two_products(scores))


def _encoder_layer(*, x: Tensor, feed_forward: Tensor, attributes: Attributes) -> Products:
    rows, d, f = prod(x.shape[:-1]), x.shape[-1], feed_forward.shape[0]
    attended = _native_attention(query=x, key=x, value=x, attributes=attributes)
    return (*attended, Product(rows, d, f), Product(rows, f, d))


def _projected_attention(*, x: Tensor, weight: Tensor, attributes: Attributes, past: Maybe = None) -> Products:
    projection = Product(prod(x.shape[:2]), weight.shape[0], weight.shape[1])
    return projection, *_two_products(attention.projected_scores(x=x, weight=weight, attributes=attributes, past=past))


def _linear_cross_entropy(*, x: Tensor, weight: Tensor, attributes: Attributes) -> Products:
    """x (n, k) · weightᵀ (classes, k); of the logits' gradient (n, classes) that by weight, and that turned by x."""
    features, classes = x.shape[-1], weight.shape[0]
    rows = x.elements // features
    products = {
        "": Product(rows, features, classes),
        "compute_input_grad": Product(rows, classes, features),
        "compute_linear_weight_grad": Product(classes, rows, features),
    }
    return tuple(product for asked, product in products.items() if not asked or attributes.get(asked) is True)


def _trilinear(*, x: Tensor, weight: Tensor, y: Tensor) -> Products:
    return _bilinear(x=x, y=y, weight=weight)


FORMULAS: Mapping[Formula, Callable[..., Products]] = MappingProxyType(
    {
        convolution.convolution_macs: _convolution,
        convolution.transposed_convolution_macs: _transposed_convolution,
        convolution.either_convolution_macs: _either_convolution,
        convolution.time_first_macs: _time_first,
        attention.tokens_first_macs: _of_scores(attention.tokens_first_scores),
        dense.linear_macs: _matrix_product,
        dense.turned_macs: _matrix_product,
        dense.inner_macs: _inner,
        dense.batch_sum_macs: _batch_sum,
        dense.grouped_macs: _grouped,
        dense.bilinear_macs: _bilinear,
        dense.trilinear_macs: _trilinear,
        dense.einsum_macs: _einsum,
        elementwise.linear_cross_entropy_macs: _linear_cross_entropy,
        pooling.affine_macs: _affine,
        classical.linear_model_macs: _linear_model,
        attention.attention_macs: _attention,
        attention.attention_23_macs: _of_scores(attention.attention_23_scores),
        attention.multi_head_macs: _of_scores(attention.multi_head_scores),
        attention.grouped_query_macs: _of_scores(attention.grouped_query_scores),
        attention.projected_macs: _projected_attention,
        attention.native_attention_macs: _native_attention,
        attention.encoder_layer_macs: _encoder_layer,
    }
)
