"""The table of what a torch model's record leaves out, and why each may be left out.

The recorder, the weight walk and the doors out of torch drop nothing else: what is in no row is
counted, or unmeasured under its own name. docs/conventions.md prints the same table.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_modelbudget.torch_models.recording import QUERIES


class Omission(NamedTuple):
    """One kind of thing that is not in the graph; place says who leaves it out."""

    place: str
    what: str
    because: str


NAMESPACES = ", ".join(f"`{name}`" for name in sorted(QUERIES))
OMISSIONS: tuple[Omission, ...] = (
    Omission(
        "recorder",
        f"operators of {NAMESPACES} that give no tensor and write into none",
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
        "the cheaper branch of `torch.cond`",
        "one branch runs; the dearer one is counted, and a note says which",
    ),
    Omission(
        "recorder",
        "a single value that is asked for, integers as a list, and the text of a tensor",
        "they decide sizes and branches, and text is for readers; a second floating element of one tensor is "
        "`torch::item`, unmeasured",
    ),
    Omission(
        "doors",
        "values that leave torch by C functions imported before (`from torch.utils.dlpack import "
        "to_dlpack`), and C++ that reads memory without an operator",
        "nothing in Python sees them; without memory they get none to read",
    ),
    Omission(
        "weights",
        "parameters that a forward pass computes from inputs or weights",
        "they are activations: the model does not store them",
    ),
    Omission(
        "weights",
        "what fills parameters that a forward pass makes",
        "later passes find them made; they count as every other weight",
    ),
    Omission(
        "weights",
        "buffers of made layers that no module holds",
        "only a module says that a tensor is a buffer; as activations they are in peak and traffic",
    ),
    Omission(
        "weights", "zeros that a sparse parameter does not store", "its values are its elements, its indices are bytes"
    ),
    Omission(
        "weights",
        "constants of rank 0, and constants of scripts that are not frozen",
        "literals of the program. Of a frozen script they are what reads them as; for a reader "
        "without a rule, weights are a lower bound",
    ),
    Omission(
        "layers",
        "inputs and outputs of a layer that the graph does not know",
        "the table of layers shows them; no number is made of it",
    ),
)
