"""Words of a user in Markdown, shown letter by letter: no markup, mention or link comes of them."""

from __future__ import annotations

import re

from pytest_modelbudget.reports.check_text import printable

# All but what means nothing in the middle of a line, as an underscore within a word does.
_MARKUP = re.compile(r"""(?![\w .,:;/+%=>()'"!?-])[\s\S]|(?<![^\W_])_|_(?![^\W_])""")


def plain(text: str) -> str:
    """Text within a line, a cell of a table or a tag."""
    written = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", printable(text))
    return written.replace("//", "/&#47;").replace("www.", "www&#46;")


def code(text: str) -> str:
    """The same in a fixed-width face."""
    return f"<code>{plain(text)}</code>"


def preformatted(text: str) -> str:
    """Lines inside <pre>, where only a tag and an entity mean anything."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;")
