"""Links of a document, followed on the site: files outside docs/ become pages under project/."""

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
HOME = "README.md"  # is the start page of the site
FENCES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".cff": "yaml"}


def site_uri(path: str, root: Path) -> str:
    """Where the site has a file or folder of the repository, both relative to their roots."""
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (root / path).is_dir():
        path = posixpath.join(path, "README.md")
    visible = "/".join(part.lstrip(".") for part in path.split("/"))
    return f"project/{visible}" if visible.endswith(".md") else f"project/{visible}.md"


def targets(text: str, path: str) -> Iterator[str]:
    """What the relative links of a document lead to, as paths in the repository."""
    for _, target, _, _ in LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def followed(text: str, path: str, root: Path) -> str:
    """The document with its links as they lead on the site."""
    here = posixpath.dirname(site_uri(path, root))

    def on_site(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups()
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return f"{opening}{posixpath.relpath(site_uri(found, root), here or '.')}{anchor or ''}{closing}"

    return LINK.sub(on_site, text)


def outside(documents: Iterable[str], root: Path) -> dict[str, str]:
    """These documents and every file that they lead to, as far as it lies outside docs/, by its page's address."""
    pages: dict[str, str] = {}
    waiting, seen = list(documents), set(documents)
    while waiting:
        path = waiting.pop()
        source = path if (root / path).is_file() else posixpath.join(path, "README.md")
        if not path.startswith("docs/"):
            pages[site_uri(path, root)] = _page(source, path, root)
        if source.endswith(".md") and (root / source).is_file():
            found = set(targets((root / source).read_text(encoding="utf-8"), source)) - seen
            waiting += found
            seen |= found
    return pages


def _page(source: str, target: str, root: Path) -> str:
    """A Markdown file with its links, another file as a block, and a folder without a README as a list."""
    if not (root / source).is_file():
        names = sorted(path.name for path in (root / target).iterdir() if not path.name.startswith("."))
        return f"# {target}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = (root / source).read_text(encoding="utf-8")
    if source.endswith(".md"):
        return followed(text, source, root)
    return f"# {target}\n\n````{FENCES.get(Path(source).suffix, 'text')}\n{text}````\n"
