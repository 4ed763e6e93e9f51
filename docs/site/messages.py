"""A page for every kind of error, with all its messages, read out of the package's own source."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.site.metrics import sentence
from pytest_modelbudget import errors

BUDGET_FILE = "BudgetFileError"  # what ``refuse`` adds up to
USAGE = "UsageError"
# Errors that are no class of errors.py, and what a user meets them for.
OTHERS = {
    BUDGET_FILE: "A budget or hardware file that does not say what it must say; each problem with `file:line:column`.",
    USAGE: "Options that cannot be followed. pytest ends with exit code 4 before anything is measured.",
}
START = """# Messages

Every message that a user can mend, by kind. Each says what is wrong, and after a colon or semicolon the way out.
Words in `‹›` are filled in: names, sizes, a guess at what was meant. In a gate it is the text of one failing item;
`measure()` raises it as `pytest_modelbudget.errors.ModelBudgetError`, and the `modelbudget` command prints it and
ends with 2.

"""


@dataclass(frozen=True)
class Message:
    """One text, the kind of error that it is of, and what was being done (of the function that says it)."""

    kind: str
    text: str
    doing: str


def pages(package: Path) -> dict[str, str]:
    """The list of kinds, and a page for each with its messages."""
    by_kind: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(package.rglob("*.py")):
        for message in messages(path.read_text(encoding="utf-8")):
            by_kind[message.kind].setdefault(message.text, message.doing)
    rows = [f"| [{kind}]({kind}.md) | {cause(kind)} | {len(texts)} |\n" for kind, texts in sorted(by_kind.items())]
    start = f"{START}| kind | what it means | messages |\n|---|---|---|\n{''.join(rows)}"
    return {"messages/index.md": start, **{f"messages/{kind}.md": page(kind, by_kind[kind]) for kind in by_kind}}


def page(kind: str, texts: dict[str, str]) -> str:
    """One kind: what causes it, and each message with what was being done."""
    listed = "\n".join(f"`` {text} ``\n:   {sentence(doing)}\n" for text, doing in sorted(texts.items()))
    return f"# {kind}\n\n{cause(kind)}\n\n{listed}"


def cause(kind: str) -> str:
    """The first line of the error's own docstring."""
    declared = getattr(errors, kind, None)
    return OTHERS.get(kind) or ((declared.__doc__ or "").splitlines()[0] if declared else "")


def messages(source: str) -> Iterator[Message]:
    """Every message that a module can say."""
    tree = ast.parse(source)
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Error")}
    module = (ast.get_docstring(tree) or "").split("\n")[0]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        doing = (ast.get_docstring(function) or module).split("\n")[0]
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            kind, said = _said(call)
            if kind and kind not in classes:
                yield from (Message(kind, text, doing) for words in said for text in _texts(words, function))


def _said(call: ast.Call) -> tuple[str, Sequence[ast.expr]]:
    """The kind of error that a call makes, and the expressions of its text and way out; "" where it makes none."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in {"refuse", "Problem"} and len(call.args) > 1:
        return BUDGET_FILE, call.args[1:2]
    is_ours = name == USAGE or (isinstance(getattr(errors, name, None), type) and name != "MissingExtraError")
    return (name, call.args) if is_ours else ("", ())


def _texts(said: ast.expr, function: ast.FunctionDef) -> Iterator[str]:
    """The texts of an expression: each of its alternatives, and what its variable was made of in the function."""
    if isinstance(said, ast.IfExp):
        yield from _texts(said.body, function)
        yield from _texts(said.orelse, function)
    elif isinstance(said, ast.Name):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == said.id for target in node.targets):
                yield from _texts(node.value, function) if not isinstance(node.value, ast.Name) else ()
    elif isinstance(said, (ast.JoinedStr, ast.Constant)):
        text = _filled(said)
        if any(letter.isalpha() for letter in text.split("‹")[0] + text.split("›")[-1]):
            yield text


def _filled(said: ast.expr) -> str:
    """A text with the names of what is filled in."""
    if isinstance(said, ast.Constant):
        return str(said.value).replace("\n", " ")
    parts = said.values if isinstance(said, ast.JoinedStr) else [said]
    return "".join(_filled(part) if isinstance(part, ast.Constant) else f"‹{_word(part)}›" for part in parts)


def _word(value: ast.expr) -> str:
    """A plain word for an expression: the last name in it."""
    names = [node for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Attribute))]
    word = names[-1] if names else None
    inner = value.value if isinstance(value, ast.FormattedValue) else value
    if isinstance(inner, ast.Call) and inner.args and isinstance(inner.args[0], (ast.Name, ast.Attribute)):
        word = inner.args[0]
    elif isinstance(inner, (ast.Name, ast.Attribute)):
        word = inner
    found = word.attr if isinstance(word, ast.Attribute) else word.id if isinstance(word, ast.Name) else "…"
    return found.strip("_").replace("_", " ")
