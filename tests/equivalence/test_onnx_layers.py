"""Networks that do not run in float64: their rewritten layers are judged alone, and it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pytest_modelbudget.equivalence.claim import Claim, Outcome
from pytest_modelbudget.equivalence.judgement import Basis, Equivalence
from pytest_modelbudget.errors import TransformError
from pytest_modelbudget.formats.model import DRAWN, UNWATCHED, LayerPair, Run, RunnableModel, Shared, Watch
from pytest_modelbudget.formats.source import ModelSource
from pytest_modelbudget.onnx_models import model as model_module
from pytest_modelbudget.onnx_models.model import InMemory, OnnxModel, load
from pytest_modelbudget.onnx_models.program import Program
from pytest_modelbudget.onnx_models.reading import write_model
from pytest_modelbudget.onnx_models.weights import redrawn
from pytest_modelbudget.registry import tables
from pytest_modelbudget.transforms.fold_batchnorm_on_onnx import folded_batchnorms
from pytest_modelbudget.transforms.on_onnx import Rewritten
from pytest_modelbudget.transforms.tile.grid import Tile
from pytest_modelbudget.transforms.tile.linear_on_onnx import Tiling, tiled_linears
from tests.builders.onnx_batchnorms import normalised
from tests.builders.onnx_graphs import model, node, value
from tests.builders.onnx_judgements import judged_rewrite
from tests.builders.onnx_linears import change, drawn, linear


def fused() -> onnx.ModelProto:
    """Two linear layers with an operator between that only ONNX Runtime knows, in float32 alone."""
    nodes = [
        node("Gemm", "x w0 b0", "fc0"),
        node("SampleOp", "fc0", "gelu", domain="com.microsoft"),
        node("Gemm", "gelu w1 b1", "fc1"),
    ]
    shapes = {"w0": (100, 70), "b0": (70,), "w1": (70, 90), "b1": (90,)}
    arrays = {name: drawn(seed, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    types = [value("fc0", "batch", 70), value("gelu", "batch", 70)]
    made = model(
        nodes, [value("x", "batch", 100)], [value("fc1", "batch", 90)], weights,
        domains=["com.microsoft"],
    )  # fmt: skip
    made.graph.value_info.extend(types)
    return made


Arrays = Mapping[str, np.ndarray]
Rewrite = Callable[[onnx.ModelProto], Rewritten]


def verified(proto: onnx.ModelProto, rewrite: Rewrite, folder: Path) -> Equivalence:
    """A rewriting of a file, held to exact algebra."""
    write_model(proto, folder / "model.onnx")
    model = load(ModelSource("onnx", "model.onnx", base=folder), tables().ops)
    folds = rewrite is folded_batchnorms
    return judged_rewrite(model, rewrite, Claim(seeds=(0, 1)), changes_weights=folds)


def tiled(proto: onnx.ModelProto) -> Rewritten:
    return tiled_linears(proto, Tiling(Tile(None, 64, 64)))


def test_layers_alone(tmp_path: Path) -> None:
    """Both layers are right in float64, whatever stands between them."""
    found = verified(fused(), tiled, tmp_path)
    assert found.outcome is Outcome.WITHIN, found.reason
    assert found.basis is Basis.LAYERS
    assert {record.name for record in found.outputs} == {"fc0", "fc1"}
    assert found.notes[0].startswith("layers only: ")


def without_spread(*names: str) -> onnx.ModelProto:
    """``fused`` with zeros for these stored tensors."""
    proto = fused()
    for name in names:
        change(proto, name, np.zeros_like)
    return proto


def multiplied(factor: np.ndarray) -> onnx.ModelProto:
    """``fused``, and behind it a product by a stored factor, of a node that stays."""
    proto = fused()
    proto.graph.node.append(node("Mul", "fc1 factor", "z"))
    proto.graph.initializer.append(numpy_helper.from_array(factor, "factor"))
    proto.graph.value_info.append(value("fc1", "batch", 90))
    proto.graph.output[0].name = "z"
    return proto


def calling_a_function() -> onnx.ModelProto:
    """``fused``, whose first result is doubled by a function of the file."""
    opsets = [onnx.helper.make_opsetid("", 23)]
    proto = fused()
    proto.graph.node.insert(1, node("twice", "fc0", "doubled", domain="own"))
    proto.graph.node[2].input[0] = "doubled"
    proto.graph.value_info.append(value("doubled", "batch", 70))
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    proto.functions.append(onnx.helper.make_function("own", "twice", ["a"], ["b"], [node("Add", "a a", "b")], opsets))
    return proto


def picking() -> onnx.ModelProto:
    """A layer that runs in float64, and four of its 70 columns, whose places the data decide, if only by 0 · x."""
    nodes = [node("Gemm", "x w", "fc"), node("ArgMax", "x", "most", axis=1, keepdims=0), node("Mul", "most none", "by")]
    nodes += [node("Add", "by taken", "at"), node("Gather", "fc at", "y", axis=1)]
    given = {"taken": np.array([7, 11, 7, 11]), "none": np.array([0])}
    weights = [numpy_helper.from_array(values, name) for name, values in {"w": drawn(0, 100, 70), **given}.items()]
    return model(nodes, [value("x", 4, 100)], [value("y", 4, 4)], weights)


def subtracting(made: onnx.ModelProto) -> None:
    made.functions[0].node[0].op_type = "Sub"


def renamed(made: onnx.ModelProto) -> None:
    next(each for each in made.graph.node if each.output[0] == "z").name = "renamed"


def stored_in_place_of_a_layer(made: onnx.ModelProto) -> None:
    del made.graph.node[-1]
    made.graph.initializer.append(numpy_helper.from_array(drawn(5, 1, 90), "fc1"))


def picking_none(made: onnx.ModelProto) -> None:
    taken = next(each for each in made.graph.initializer if each.name.endswith("taken"))
    taken.CopyFrom(numpy_helper.from_array(np.array([7, 71, 7, 71]), taken.name))


OVER, UNKNOWN, ZERO = Outcome.OVER, Outcome.UNKNOWN, np.array(0, np.float32)
# A model, what is wrong in its tiled twin, the outcome, the first layer that differs, and words of the reason.
WRONG: Mapping[str, tuple[onnx.ModelProto, Callable[[onnx.ModelProto], object], Outcome, str | None, str]] = {
    "a tile of zeros": (fused(), lambda made: change(made, "w1_k1_n1", np.zeros_like), OVER, "fc1", ""),
    "a gain of a node that stayed": (
        multiplied(drawn(5, 90)), lambda made: change(made, "factor", np.negative), OVER, "z", "",
    ),
    "a layer of zeros, which is redrawn": (
        without_spread("w1", "b1"), lambda made: change(made, "w1_k1_n1", np.negative), OVER, "fc1", "",
    ),
    "a factor of zero": (
        multiplied(ZERO), renamed, UNKNOWN, None, "layer 'z' does not move with its inputs: nothing could be seen",
    ),
    "a stored output": (
        fused(), stored_in_place_of_a_layer, UNKNOWN, None, "output 'fc1' is computed in one of the models alone",
    ),
    "one output more": (
        fused(), lambda made: made.graph.output.append(value("gelu", "batch", 70)), OVER, None,
        "outputs are 'fc1', 'gelu' and were 'fc1'",
    ),
    "a twin that does not run": (picking(), picking_none, UNKNOWN, None, "running on onnxruntime raised"),
}  # fmt: skip


@pytest.mark.parametrize(("proto", "spoil", "outcome", "scope", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_twin_is_told(
    proto: onnx.ModelProto, spoil: Callable[[onnx.ModelProto], object], outcome: Outcome, scope: str | None, words: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The layer that is off is named, or why nothing can be said; without the mistake a layer that moves is within."""

    def wrong(each: onnx.ModelProto) -> Rewritten:
        found = tiled(each)
        spoil(found.model)
        return found

    found = verified(proto, wrong, tmp_path)
    assert found.outcome is outcome
    assert scope is None or getattr(found.first_divergence, "scope", None) == scope
    assert words in found.reason


@pytest.mark.parametrize(
    ("made", "weights"), [(multiplied(drawn(5, 90)), "as loaded"), (without_spread("w1", "b1"), "drawn, seed 0")]
)
def test_right_twins_of_those_are_within(made: onnx.ModelProto, weights: str, tmp_path: Path) -> None:
    """A layer of zeros gives zeros whatever its tiles are: it is judged on other weights."""
    found = verified(made, tiled, tmp_path)
    assert (found.outcome, found.weights) == (Outcome.WITHIN, weights), found.reason


def test_a_function_that_changed_changes_its_calls(tmp_path: Path) -> None:
    """A call is no longer the same layer where the function that it calls is another."""

    def wrong(proto: onnx.ModelProto) -> Rewritten:
        found = tiled(proto)
        subtracting(found.model)
        return found

    assert verified(calling_a_function(), wrong, tmp_path).outcome is not Outcome.WITHIN


def test_layers_of_the_drawn_model_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the drawn network does not run, its layers are looked at, and not the loaded ones'."""
    proto = linear(100, 70)
    change(proto, "fc.weight", np.zeros_like)
    seen: list[onnx.ModelProto] = []

    class DrawnDoesNotRun(OnnxModel):
        def run(self, inputs: Arrays, watch: Watch = UNWATCHED) -> Run:
            if self.weights == DRAWN:
                raise TransformError("does not run")
            return super().run(inputs, watch)

        def shared_with(self, original: RunnableModel) -> Shared:
            def pairs() -> Iterator[LayerPair]:
                assert isinstance(original, OnnxModel)
                seen.append(original.proto)
                yield from ()

            return Shared(pairs=pairs)

    monkeypatch.setattr(model_module, "OnnxModel", DrawnDoesNotRun)
    original = DrawnDoesNotRun(InMemory(Program(proto, tables().ops), "model.onnx", {}), tables().ops)
    assert judged_rewrite(original, tiled, Claim(seeds=(0,))).weights == "drawn, seed 0"
    assert seen == [redrawn(proto, tables().ops)]


def test_a_fold_over_two_nodes(tmp_path: Path) -> None:
    """A layer may be several nodes: what stands between values that both graphs have."""
    proto = normalised("Conv")
    proto.graph.node.append(node("SampleOp", "y", "z", domain="com.microsoft"))
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    proto.graph.output[0].name = "z"
    found = verified(proto, folded_batchnorms, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.WITHIN, Basis.LAYERS), found.reason


def test_a_layer_of_undeclared_shape_is_judged(tmp_path: Path) -> None:
    """ONNX Runtime says what a layer behind its own operator is fed."""
    proto = fused()
    del proto.graph.value_info[:]
    assert verified(proto, tiled, tmp_path).outcome is Outcome.WITHIN


@pytest.mark.parametrize("dims", [{}, {"batch": 5}])
def test_one_run_for_all_rows(dims: dict[str, int], tmp_path: Path) -> None:
    """With a symbol for the batch, and with its size bound, the judgement is the same."""
    write_model(fused(), tmp_path / "model.onnx")
    source = ModelSource("onnx", "model.onnx", base=tmp_path, dims=dims)
    found = judged_rewrite(load(source, tables().ops), tiled, Claim(seeds=(0,)))
    assert found.outcome is Outcome.WITHIN


def branching() -> onnx.ModelProto:
    """A linear layer, and one of two more inside the branches of an If."""
    arrays = {"w0": drawn(0, 100, 70), "w1": drawn(1, 70, 70), "yes": np.array(True)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    branches = [
        onnx.helper.make_graph([node("Gemm", "fc0 w1", name)], name, [], [value(name, "batch", 70)])
        for name in ("first", "second")
    ]
    chosen = node("If", "yes", "y", then_branch=branches[0], else_branch=branches[1])
    given, result = value("x", "batch", 100), value("y", "batch", 70)
    return model([node("Gemm", "x w0", "fc0"), chosen], [given], [result], weights)


def test_control_flow(tmp_path: Path) -> None:
    """Layers in branches stay whole and are listed; the network runs and is the same."""

    def outer(proto: onnx.ModelProto) -> Rewritten:
        return tiled_linears(proto, Tiling(Tile(None, 64, 64), layers=("fc0",)))

    everywhere = tiled(branching()).changes
    assert {each.scope: each.why for each in everywhere if not each.became} == dict.fromkeys(
        ("first", "second"), "it is in a body of onnx::If"
    )
    found = verified(branching(), outer, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.WITHIN, Basis.NETWORK), found.reason


def test_local_functions(tmp_path: Path) -> None:
    """A model with functions of its own runs as it is written; what they multiply is listed."""
    body = [node("MatMul", "a b", "c")]
    opsets = [onnx.helper.make_opsetid("", 23)]
    function = onnx.helper.make_function("own", "product", ["a", "b"], ["c"], body, opsets)
    nodes = [node("Gemm", "x w0", "fc0"), node("product", "fc0 w1", "y", domain="own")]
    arrays = {"w0": drawn(0, 100, 70), "w1": drawn(1, 70, 70)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    given, result = value("x", "batch", 100), value("y", "batch", 70)
    proto = model(nodes, [given], [result], weights, domains=["own"], functions=[function])
    assert [each.why for each in tiled(proto).changes] == [
        "", "it calls the model's own function own::product: inline that first",
    ]  # fmt: skip
    found = verified(proto, tiled, tmp_path)
    assert (found.outcome, found.basis) == (Outcome.WITHIN, Basis.NETWORK), found.reason


READERS = {
    "of an outer weight": [node("MatMul", "fc0 w1", "z")],
    "of a turned one": [node("Transpose", "w1", "t"), node("MatMul", "fc0 t", "z")],
    "of a constant": [
        node("Constant", "", "c", value=numpy_helper.from_array(drawn(1, 70, 70))),
        node("MatMul", "fc0 c", "z"),
    ],
}


@pytest.mark.parametrize("nodes", READERS.values(), ids=READERS)
def test_products_in_bodies_are_listed(nodes: list[onnx.NodeProto]) -> None:
    """A MatMul in a branch multiplies by a weight wherever that is stored."""
    proto = branching()
    for attribute in proto.graph.node[1].attribute:
        del attribute.g.node[:]
        attribute.g.node.extend(nodes)
        attribute.g.output[0].name = "z"
    whys = {each.scope: each.why for each in tiled(proto).changes}
    assert whys == {"fc0": "", "z": "it is in a body of onnx::If"}


CALLS = {
    "by its own constant": (
        ["a"],
        [
            node("Constant", "", "b", value=numpy_helper.from_array(drawn(1, 70, 70))),
            node("MatMul", "a b", "c"),
        ],
        "fc0",
        True,
    ),
    "by a stored one": (["a", "b"], [node("MatMul", "a b", "c")], "fc0 w1", True),
    "of activations": (
        ["a", "b"],
        [node("Transpose", "a", "t"), node("MatMul", "a t", "p"), node("MatMul", "p a", "q"),
         node("Add", "q b", "c")],
        "fc0 b1",
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "body", "reads", "listed"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_nested", [False, True], ids=["called", "in a branch"])
def test_products_in_functions_are_listed(
    given: list[str], body: list[onnx.NodeProto], reads: str, listed: bool, is_nested: bool
) -> None:
    """A call that multiplies by a weight stays whole, and is said; one of activations is none."""
    opsets = [onnx.helper.make_opsetid("", 23)]
    function = onnx.helper.make_function("own", "product", given, ["c"], body, opsets)
    call = node("product", reads, "y", domain="own")
    if is_nested:
        branch = onnx.helper.make_graph([call], "branch", [], [value("y", "batch", 70)])
        call = node("If", "yes", "chosen", then_branch=branch, else_branch=branch)
    arrays = {
        "w0": drawn(0, 100, 70), "w1": drawn(1, 70, 70), "b1": drawn(2, 70), "yes": np.array(True),
    }  # fmt: skip
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    proto = model(
        [node("Gemm", "x w0", "fc0"), call], [value("x", "batch", 100)],
        [value(call.output[0], "batch", 70)], weights, domains=["own"], functions=[function],
    )  # fmt: skip
    why = "it calls the model's own function own::product: inline that first"
    whys = [each.why for each in tiled(proto).changes if each.why]
    assert whys == [why] * (listed * (1 + is_nested))


@pytest.mark.parametrize(("first", "outcome"), [("batch", Outcome.WITHIN), (4, Outcome.UNKNOWN)], ids=["open", "fixed"])
def test_a_second_batch_size(first: int | str, outcome: Outcome, tmp_path: Path) -> None:
    """batch: [1, 3] needs a file that leaves the first axis open."""
    write_model(linear(100, 70, leading=(first,)), tmp_path / "model.onnx")
    source = ModelSource("onnx", "model.onnx", base=tmp_path)
    found = judged_rewrite(load(source, tables().ops), tiled, Claim(seeds=(0,), batches=(1, 3)))
    assert found.outcome is outcome
    assert found.outcome is Outcome.WITHIN or "export a symbol" in found.reason
