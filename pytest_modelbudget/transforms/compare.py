"""``compare: {torch: package.module:callable}``: a second model that must agree with the first."""

from pytest_modelbudget.equivalence.changed import Changed
from pytest_modelbudget.formats.model import LOADED, LoadedModel, Model, RunnableModel
from pytest_modelbudget.transforms.transform import Settings


def apply(model: Model, settings: Settings) -> Changed:
    """The second model, compared with the first one; weights are drawn where both can be made again."""
    second = settings["compare"]
    if not isinstance(model, RunnableModel) or not isinstance(second, RunnableModel):
        assert isinstance(second, (LoadedModel, RunnableModel)), "the gate loads second models"
        return Changed(second)  # to be measured; comparing it says that it does not run
    if model.engine != second.engine or not model.engine:
        return Changed(second, upcasts=True, follows=False, made_apart=True, by_position=True, stacks=False)
    follows = second.can_be_redrawn and second.is_factory()
    notes: tuple[str, ...] = ()
    if follows and model.weights != LOADED:
        notes = without_partner(model.drawn_names, second.drawn_names)
        second = second.redrawn()
    return Changed(second, upcasts=True, follows=follows, made_apart=True, notes=notes)


def without_partner(first: frozenset[str], second: frozenset[str]) -> tuple[str, ...]:
    """A word about weights that only one of two models has, and so cannot be equal in both."""
    alone = sorted(first ^ second)
    if not alone:
        return ()
    return (
        f"weights are drawn by name, and {len(alone)} have no partner of their name, such as "
        f"{alone[0]}: let both factories load their weights",
    )
