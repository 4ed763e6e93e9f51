"""Arguments that are made by a call, and inputs that are no tensors, as a budget reads them."""

from __future__ import annotations

import pytest

from pytest_modelbudget.formats.source import Call, Plain, TensorSpec
from tests.builders.texts import Problems, Read, inputs, model

INPUT = "\n    inputs: float32 1x3"
CONFIG = Call("lib:Config", (), {"layers": 2})


@pytest.mark.parametrize(
    ("kwargs", "meant"),
    [
        pytest.param("{config: {call: lib:Config, kwargs: {layers: 2}}}", {"config": CONFIG}, id="a call"),
        pytest.param("{call: {call: lib:Config}}", {"call": Call("lib:Config")}, id="an argument of that name"),
        pytest.param("{of: [1, {call: lib:Config, kwargs: {layers: 2}}]}", {"of": [1, CONFIG]}, id="in a list"),
        pytest.param(
            "{of: {text: {call: lib:Config, kwargs: {layers: 2}}, n: '1'}}",
            {"of": {"text": CONFIG, "n": "1"}},
            id="in a mapping",
        ),
        pytest.param(
            "{net: {call: lib:Net.of, args: [{call: lib:Config, kwargs: {layers: 2}}, a]}}",
            {"net": Call("lib:Net.of", (CONFIG, "a"))},
            id="in a call",
        ),
    ],
)
def test_calls_are_read(read: Read, kwargs: str, meant: dict[str, object]) -> None:
    """A mapping with the key call is one, as deep as it may stand."""
    (budget,) = read(model(f"    kwargs: {kwargs}{INPUT}")).models
    assert budget.made.kwargs == meant


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(
            "args: [{call: lib.Config}]",
            "6:19: 'lib.Config' is no module:attribute: did you mean lib:Config?",
            id="dotted",
        ),
        pytest.param("args: [{call: }]", "6:18: expected call: a module:callable, found nothing", id="nothing"),
        pytest.param("args: [{call: [a]}]", "6:19: expected call: a module:callable, found a list", id="a list"),
        pytest.param(
            "args: [{call: a:b, kwarg: {}}]", "6:24: unknown key 'kwarg' in a call: did you mean 'kwargs'?", id="a typo"
        ),
        pytest.param(
            "args: [{call: a:b, args: 3}]", "6:30: expected args: a list of values, found one word", id="no list"
        ),
        pytest.param(
            "kwargs: {a: {b: [{call: a:b, kwargs: {3x: 1}}]}}", "6:43: '3x' is no name of an argument", id="deep down"
        ),
    ],
)
def test_no_call(problems: Problems, arguments: str, says: str) -> None:
    """What is wrong with a call is said at its own place."""
    assert problems(model(f"    {arguments}{INPUT}")) == [says]


X = TensorSpec("float32", (1, 3))


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        pytest.param("{x: float32 1x3, flag: false}", {"x": X, "flag": Plain(False)}, id="flag"),
        pytest.param("{x: float32 1x3, timestep: 3}", {"x": X, "timestep": Plain(3)}, id="integer"),
        pytest.param("{x: float32 1x3, mask: null}", {"x": X, "mask": Plain(None)}, id="None"),
        pytest.param("{x: float32 1x3, size: [2, 4]}", {"x": X, "size": (Plain(2), Plain(4))}, id="a list"),
        pytest.param("{x: float32 1x3, mode: {plain: fast}}", {"x": X, "mode": Plain("fast")}, id="a text"),
        pytest.param("{added: {x: float32 1x3, n: 1}}", {"added": {"x": X, "n": Plain(1)}}, id="a dict"),
        pytest.param("{plain: float32 1x3}", {"plain": X}, id="an input of that name"),
    ],
)
def test_inputs_that_are_no_tensors(read: Read, spec: str, meant: dict[str, object]) -> None:
    """They are handed over as they are."""
    (budget,) = read(inputs(spec)).models
    assert budget.made.inputs.named == meant


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(
            "[1, 3, 224]", "13: inputs of numbers alone: for a tensor of these sizes write float32 1x3x224", id="sizes"
        ),
        pytest.param("3", "13: '3' is no input: write one such as float32 1x3x224x224", id="a number"),
        pytest.param("{x: }", "16: expected an input such as float32 1x3x224x224, found nothing", id="nothing"),
        pytest.param("{x: {}}", "17: expected inputs by name, found an empty mapping", id="an empty dict"),
        pytest.param(
            "{x: fast}",
            "17: 'fast' is no input: write one such as float32 1x3x224x224, or {plain: fast} for a text",
            id="a word",
        ),
    ],
)
def test_no_input(problems: Problems, spec: str, says: str) -> None:
    """A slip is no plain value."""
    assert problems(inputs(spec)) == [f"6:{says}"]


@pytest.mark.parametrize(
    ("held", "needing"),
    [
        pytest.param(
            "limits: {params: 1, weight_memory: 1 B, model_size: 1 B, trainable_params: 1}", "", id="what is stored"
        ),
        pytest.param("scopes: {fc: {params: 1}}", "", id="of a scope"),
        pytest.param("limits: {params: 1, macs: 1, ops: {deny: [lstm]}}", "macs, ops", id="what a run tells"),
        pytest.param("scopes: {fc: {macs: 1}}", "macs", id="of a scope's run"),
        pytest.param("limits: {training_memory: 1 B}", "training_memory", id="a training step"),
        pytest.param("transforms: {t: {fold_batchnorm: {}, limits: {params: 1}}}", "transforms", id="a transform"),
        pytest.param("deployments: {d: {device: cortex_m7, limits: {params: 1}}}", "deployments", id="a device"),
    ],
)
def test_inputs_may_be_left_out(problems: Problems, held: str, needing: str) -> None:
    """Where nothing is held that only a run can tell."""
    found = problems(f"model_budget: 1\nmodels:\n  net:\n    torch: a:b\n    {held}\n")
    assert [problem for problem in found if "has no inputs" in problem] == (
        [f"3:3: the model 'net' has no inputs for {needing}: {WAYS}"] if needing else []
    )


WAYS = "give inputs such as float32 1x3x224x224, on the model or under defaults (modelbudget init a:b looks for some)"
VARIED = """model_budget: 1
models:
  net:
    torch: a:b
    limits: {params: 1}
    variants:
      one: {inputs: float32 1x3, limits: {macs: 1}}
      two: {dtype: float16, limits: {macs: 1}}
"""


@pytest.mark.parametrize("key", ["args: [8]", "kwargs: {width: 8}"])
def test_a_variant_takes_no_other_arguments(problems: Problems, key: str) -> None:
    """Another width is another model; what is known in a variant does not list what it refuses."""
    text = VARIED.replace("dtype: float16", f"{key}, inputs: float32 1x3")
    (told,) = problems(text)
    word = key.partition(":")[0]
    assert told.endswith(
        f"'{word}' is no key of a variant: a variant is the model as it is built: "
        "write one with other arguments under models:, by a name of its own"
    )
    (unknown,) = problems(VARIED.replace("dtype: float16", "zzz: 1, inputs: float32 1x3"))
    listed = unknown.partition("known are ")[2].split(", ")
    assert {"inputs", "dtype", "limits"} <= set(listed)
    assert not {"args", "kwargs", "fits"} & set(listed)


def test_a_variant_has_inputs_of_its_own(problems: Problems) -> None:
    """Or those of its model, which has none here."""
    assert problems(VARIED) == [f"8:7: the variant 'two' has no inputs for macs: {WAYS}"]
    assert problems(VARIED.replace("models:", "defaults: {inputs: float32 1x3}\nmodels:")) == []
