"""What ``mkdocs build`` adds to the documents: the README as start page, generated pages, linked files."""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site import links, metrics, operations  # noqa: E402  # found under ROOT
from pytest_modelbudget.cli.command import SCHEMAS  # noqa: E402

WRITTEN = (links.HOME, "CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All pages that no file of docs/ has."""
    documents = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    pages = {
        **links.outside([*documents, *WRITTEN], ROOT),
        **metrics.pages(),
        **operations.pages(),
        **{f"schemas/{name}.json": text() for name, text in SCHEMAS.items()},
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A document of docs/ with links that lead somewhere on the site."""
    if page.file.generated_by is not None:
        return markdown
    return links.followed(markdown, f"docs/{page.file.src_uri}", ROOT)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Blocks of code that may be wider than a phone can be reached, and so scrolled, with the keyboard."""
    return html.replace("<pre><span></span>", '<pre tabindex="0"><span></span>')
