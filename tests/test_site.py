"""Pages that the site makes of tables and sources: every metric, every operation, all links."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest

from docs.site import links, metrics, operations
from pytest_modelbudget.budget.read_budget import read_budget
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.ops.table import builtin_ops
from pytest_modelbudget.registry import tables

ROOT = Path(__file__).resolve().parents[1]


def test_every_metric_has_a_page_with_a_budget(tmp_path: Path) -> None:
    """Its definition, its unit, and a limit on it that the reader of budgets takes."""
    pages = metrics.pages()
    assert set(pages) == {"metrics/index.md", *(f"metrics/{key}.md" for key in metric_table())}
    for key, metric in metric_table().items():
        text = pages[f"metrics/{key}.md"]
        assert f"| unit | {metric.unit} |" in text
        path = tmp_path / f"{key}.yaml"
        path.write_text(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
        assert read_budget(path, tables(), root=tmp_path).models


def test_every_operation_stands_on_a_page_with_its_reason() -> None:
    """All foreign names, all kinds as headings, all reasons; and nothing is shown as the address of an object."""
    pages = operations.pages()
    text = "\n".join(pages.values())
    assert [name for name in builtin_ops() if f"`{name}`" not in text] == []
    assert set(re.findall(r"^## (.*)$", text, re.MULTILINE)) == builtin_ops().kinds
    assert [rule.because for rule in builtin_ops().values() if rule.because.rstrip(".") not in text] == []
    assert " at 0x" not in text


@pytest.mark.parametrize(
    ("path", "link", "leads"),
    [
        pytest.param("README.md", "docs/ci.md#gitlab", "ci.md#gitlab", id="from the start page"),
        pytest.param("docs/ci.md", "../action.yml", "project/action.yml.md", id="a file outside"),
        pytest.param("docs/recipes/lora.md", "../ci.md", "../ci.md", id="a page above"),
        pytest.param("CONTRIBUTING.md", "README.md", "../index.md", id="back to the start"),
        pytest.param("docs/ci.md", "../examples/tiling", "project/examples/tiling/README.md", id="a folder"),
        pytest.param("docs/ci.md", "https://pytorch.org", "https://pytorch.org", id="elsewhere"),
    ],
)
def test_links_lead_to_the_same_on_the_site(path: str, link: str, leads: str) -> None:
    """Files outside docs/ stand below project/, each as a page."""
    assert links.followed(f"[x]({link})", path, ROOT) == f"[x]({leads})"


def test_generated_links_lead_somewhere() -> None:
    """From page to generated page, and from files outside docs/ to all that they name."""
    documents = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")]
    made = {**metrics.pages(), **operations.pages()}
    pages = {**links.outside(["README.md", *documents], ROOT), **made}
    known = {*pages, *(path.removeprefix("docs/") for path in documents)}
    known |= {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/pictures/*")}
    for uri, text in pages.items():
        for target in links.targets(re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL), uri):
            assert posixpath.normpath(target) in known, (uri, target)
