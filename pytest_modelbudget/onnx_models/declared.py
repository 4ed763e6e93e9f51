"""What a reader must know of the shapes that a file declares, beside those that its operators give."""

from collections.abc import Iterable, Iterator

from pytest_modelbudget.onnx_models.inference import Frame
from pytest_modelbudget.units import some_of

NAMED = 2  # operators that a note names


def notes_on_shapes(frame: Frame, decided: Iterable[str]) -> Iterator[str]:
    """A sentence on shapes that operators contradict, and one on sizes that only the file tells: data decide them."""
    pairs = ((name, declared.sizes, frame.type(name).sizes) for name, declared in frame.body.declared.items())
    wrong = [(name, said, given) for name, said, given in pairs if None not in (said, given) and said != given]
    if wrong:
        name, said, given = wrong[0]
        yield (
            f"the file declares '{name}' as {list(said or ())}, and its operators give {list(given or ())}"
            f"{f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''}: counted as they give"
        )
    if named := some_of(decided, NAMED):
        yield f"data decide sizes of this model ({named}): counted as the file declares them; a run may have more"
