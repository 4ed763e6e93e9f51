"""What graphs and comparisons omit, and why.

Recorder, readers, weight walks and runs drop nothing else: what is in no row is counted, or unmeasured under its own
name. docs/conventions.md and docs/transforms.md link to this file.
"""

from typing import NamedTuple


class Omission(NamedTuple):
    """One kind of thing that is in no number; place says who leaves it out."""

    place: str
    what: str
    because: str


OF_TORCH_MODELS: tuple[Omission, ...] = (
    Omission(
        "recorder",
        "operators of `aten`, `prim`, `prims`, `profiler` that give no tensor and write into none",
        "sizes, types, checks, single values and marks of a profile; torch's own operators compute "
        "into tensors. Of any other namespace they are recorded, and unmeasured",
    ),
    Omission(
        "recorder",
        "an operator that is made of others and has no rule",
        "it is taken apart, and its parts are recorded",
    ),
    Omission(
        "recorder",
        "operators on a wrapper tensor that is no weight (jagged tensors)",
        "its class takes them apart, and what they do to its parts is recorded",
    ),
    Omission(
        "recorder",
        "the cheaper branch of `torch.cond`, or the one that a condition on sizes does not take",
        "one branch runs; where data decide, the dearer one is counted, and a note says which; "
        "limits on `ops` then hold both",
    ),
    Omission(
        "recorder",
        "a single value that is asked for, integers as a list, and the text of a tensor",
        "they decide sizes and branches, and text is for readers; a second floating element of one tensor is "
        "`torch::item`, unmeasured",
    ),
    Omission(
        "doors",
        "values that leave torch by `torch.utils.dlpack.to_dlpack` behind a branch that only a run "
        "takes, and C++ that reads memory without an operator",
        "nothing in Python sees them; without memory they get none to read",
    ),
    Omission(
        "weights",
        "parameters that a forward pass computes from inputs or weights",
        "they are activations: the model does not store them",
    ),
    Omission("weights", "what fills parameters that a forward pass makes and throws away", "no result depends on it"),
    Omission(
        "weights",
        "buffers of a layer without parameters that a forward pass makes",
        "as activations they are in peak and traffic",
    ),
    Omission(
        "weights", "zeros that a sparse parameter does not store", "its values are its elements, its indices are bytes"
    ),
    Omission(
        "weights",
        "constants of rank 0, and constants of scripts that are not frozen",
        "literals of the program. Of a frozen script, a part of a module too, they are what reads them as; for a "
        "reader without a rule, weights are a lower bound",
    ),
    Omission(
        "layers",
        "inputs and outputs of a layer that the graph does not know",
        "the table of layers shows them; no number is made of it",
    ),
)

OF_ONNX_FILES: tuple[Omission, ...] = (
    Omission(
        "file",
        "names of producers, versions, documentation, metadata, quantisation annotations",
        "they say something of the model, and are nothing that it does; an exporter's scopes and kinds are read",
    ),
    Omission(
        "file", "training graphs, and what they alone store", "what is measured is inference, which runs none of it"
    ),
    Omission(
        "file",
        "functions that are not called",
        "no runtime keeps them; one that is called is written out, with its constants, once for each call",
    ),
    Omission(
        "file",
        "values of stored tensors of more than 256 elements",
        "a number follows from type and shape; masks and zeros are recognised before, also in a file next to the model",
    ),
    Omission(
        "file",
        "bytes of text, and the positions of values in a sparse tensor",
        "text has no width; of a sparse tensor the values are what it stores",
    ),
    Omission(
        "reader", "`Constant` nodes", "they are stored tensors, counted as initialisers are, and do nothing in a run"
    ),
    Omission(
        "reader",
        "operands that say how large or where, and nodes that only lead to them",
        "shapes are known before the run: see Shapes",
    ),
    Omission(
        "reader",
        "the branch that a known condition of an `If` does not take, and the cheaper one of an unknown condition",
        "one branch runs; what both store is counted, and a note says which of two was taken as dearer; limits on "
        "`ops` hold all that may run",
    ),
    Omission("reader", "the body of a `Loop` that never runs", "its count is known, and 0; what it stores is counted"),
    Omission(
        "reader",
        "the body of an operator that has no rule, or of a `Loop` of unknown count",
        "the operator is unmeasured under its own name; what its body stores is counted, and limits on `ops` hold "
        "which operators it has",
    ),
    Omission(
        "reader",
        "numbers in attributes",
        "settings of an operator, labels and keys among them; what classical learners learnt is counted. "
        "A tensor in an attribute of an operator without a rule makes weights a lower bound",
    ),
    Omission(
        "reader",
        "further results of a view that are not read",
        "the mask of a Dropout at inference: no runtime writes it",
    ),
    Omission(
        "reader",
        "the memory of a result that is not read and no caller gets",
        "it can be dropped at once; the operation that makes it is counted",
    ),
    Omission(
        "reader",
        "stored tensors that are inputs too, as inputs",
        "what is not fed has its stored value: they are counted where they are stored",
    ),
    Omission(
        "inference",
        "values that are worked out before the run, of more than 65,536 elements",
        "a small file could ask for any memory; a shape that depends on one is unmeasured, with its name",
    ),
    Omission(
        "inference",
        "integers and sizes that leave 64 bits",
        "runtimes wrap there; onnx's inference refuses the file, or what depends on one is unmeasured",
    ),
)

OF_COMPARISONS: tuple[Omission, ...] = (
    Omission(
        "inputs",
        "families, for a model that takes integers alone",
        "integers have no size to vary: they are uniform in their range, and the report says so where that was guessed",
    ),
    Omission(
        "inputs",
        "scales on which the original overflows in its own type",
        "its own outputs say nothing there; the report names the scale that was run",
    ),
    Omission(
        "inputs",
        "calls beyond 2^20 elements, of the 256 rows that outputs constant in steps get",
        "their memory; the report says how many calls were made, and `rows` sets more",
    ),
    Omission(
        "runs",
        "rows alone, where a float64 run of all rows as one gives each row what it gives alone",
        "that is checked first, to 1e-10; one normal row and zeros are run alone in the declared shape, too",
    ),
    Omission(
        "runs",
        "float64 runs of a second model that cannot run in float64",
        "its own type decides alone: `precision only`, and unknown for types other than float32",
    ),
    Omission(
        "runs",
        "what a run multiplies, once a run has multiplied what the graph says",
        "the count is the program's, and the program is the same in every run",
    ),
    Omission(
        "layers",
        "outputs of a replaced `aten::linear` of which eight random mixtures agree",
        "what is wrong in one output is wrong in each mixture; more than 1e-12 is compared whole",
    ),
    Omission(
        "layers",
        "inputs beyond 16 sets, while the layer that is wrong is searched",
        "the verdict is known already; where no layer is found, the report says so",
    ),
    Omission(
        "branches",
        "those that no run took, where they are the same in both models",
        "the same operators on the same values give the same; others make the claim unknown",
    ),
    Omission(
        "branches",
        "what an `if` or a loop of Python code or of TorchScript, and a `while_loop` of torch, have in a way that no "
        "input took",
        "only what runs is seen: give `inputs` that take it",
    ),
    Omission(
        "branches",
        "which way an If or a Loop goes inside of a loop, a branch or a function of an ONNX file, and a `torch.cond` "
        "that values call a number of times",
        "the runs do not tell; a note names those that are not the same in both models",
    ),
    Omission(
        "stored tensors",
        "elements that no run has read, where the other model has no tensor of that name or of the same values",
        "nothing says what belongs together; a note says how many rows were read, but of one whole number that no run "
        "has read, as a norm's count of batches. All others are compared as stored",
    ),
)
