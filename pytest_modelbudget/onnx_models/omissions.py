"""The table of what the graph of an ONNX file leaves out, and why each may be left out.

Reader, inference and runs drop nothing else: what is in no row is counted, or unmeasured under its own name.
docs/conventions.md prints the same table.
"""

from __future__ import annotations

from typing import NamedTuple


class Omission(NamedTuple):
    """One kind of thing that is not in the graph; place says who leaves it out."""

    place: str
    what: str
    because: str


OMISSIONS: tuple[Omission, ...] = (
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
        "functions that nobody calls",
        "no runtime keeps them; one that is called is written out, with its constants, once for each call",
    ),
    Omission(
        "file",
        "values of stored tensors of more than 256 elements",
        "a number follows from type and shape; masks are told by their values before these are dropped",
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
        "one branch runs; what both store is counted, and a note says which of two was taken as dearer",
    ),
    Omission("reader", "the body of a `Loop` that never runs", "its count is known, and 0; what it stores is counted"),
    Omission(
        "reader",
        "the body of an operator that has no rule, or of a `Loop` of unknown count",
        "the operator is unmeasured under its own name; what its body stores is counted",
    ),
    Omission(
        "reader",
        "numbers in attributes",
        "settings of an operator; coefficients of a linear model are MACs. A tensor in an attribute of an operator "
        "without a rule makes weights a lower bound",
    ),
    Omission(
        "reader",
        "further results of a view that nobody reads",
        "the mask of a Dropout at inference: no runtime writes it",
    ),
    Omission(
        "reader",
        "the memory of a result that nobody reads and no caller gets",
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
        "runtimes wrap there; what depends on one is unmeasured, with its name",
    ),
)
