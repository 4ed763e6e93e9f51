"""Draw the pictures of the README from real runs: ``python docs/draw_pictures.py`` writes docs/pictures/.

The tutorial's network is widened, and the gate run. The terminal becomes an SVG of its text and colours, the comment
and the page are photographed in headless Chromium. Each picture carries its words (an SVG as its text, a PNG under
the key ``words``), so that a test can tell whether it is still what a run says. Needs the extras torch, html and
test, Chromium, and a font with emoji.
"""

import html
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
NET = re.compile(r"^<!-- file: nets.py -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INPUT = "float32 1x3x32x32"
# The colours of a terminal, on a dark ground and on a light one: the SVG has both, and follows the reader's setting.
COLOURS = {"31": ("#ff7b72", "#b3202a"), "32": ("#7ee787", "#17703f"), "33": ("#e3b341", "#8a5a00")}
TEXT, GROUND = ("#e6edf3", "#1f2328"), ("#0d1117", "#f6f8fa")
SEEN = re.compile(r"\x1b\[([\d;]*)m")
COLUMN, LINE = 7.83, 17  # of 13 px letters
COMMENT_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ font: 13px/1.5 system-ui, sans-serif; margin: 16px; max-width: 1100px; color: #1f2328 }}
body > div {{ border: 1px solid #d1d9e0; border-radius: 6px; padding: 4px 16px }}
table {{ border-collapse: collapse }} td, th {{ border: 1px solid #d1d9e0; padding: 3px 8px; text-align: left }}
td, th {{ white-space: nowrap }}
code, pre {{ background: #f0f1f2; border-radius: 4px; padding: 1px 4px; font-size: 12px }}
</style><div>{body}</div>"""


def main() -> None:
    """Write terminal.svg, comment.png and page.png."""
    if not subprocess.run(["fc-list", ":charset=274c:color=true"], capture_output=True, check=True).stdout:
        raise SystemExit("no font has emoji, which would be drawn as boxes: install one (fonts-noto-color-emoji)")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        lines = red_session(project)
        (PICTURES / "terminal.svg").write_text(terminal(shortened(lines)), encoding="utf-8")
        comment = (project / "comment.md").read_text(encoding="utf-8")
        shown = project / "comment.html"
        body = (
            MarkdownIt("commonmark", {"html": True})
            .enable("table")
            .render(comment)
            .replace("<details>", "<details open>", 1)
        )
        shown.write_text(COMMENT_PAGE.format(body=body), encoding="utf-8")
        photograph(shown, PICTURES / "comment.png", 1130, 640, comment)
        photograph(project / "page.html", PICTURES / "page.png", 1200, 900, "\n".join(lines))


def red_session(project: Path) -> list[str]:
    """The tutorial's steps up to the red gate: its output, with the colours of a terminal; reports stand beside it."""
    (net,) = NET.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT), "PY_COLORS": "1"}

    def run(*command: str) -> str:
        asked = [sys.executable, "-m", *command]
        return subprocess.run(asked, cwd=project, env=environment, capture_output=True, text=True, check=False).stdout

    (project / "nets.py").write_text(net, encoding="utf-8")
    run("pytest_modelbudget.cli", "init", "nets:small", "--input", INPUT, "--output", "budgets/small.yaml")
    run("pytest", "--model-budget", "--model-budget-update=create")
    (project / "nets.py").write_text(net.replace("width=32", "width=48"), encoding="utf-8")
    reports = (
        f"--model-budget-report={key}:{name}" for key, name in (("comment", "comment.md"), ("html", "page.html"))
    )
    return run("pytest", "--model-budget", "-p", "no:cacheprovider", "--tb=short", *reports).splitlines()


def shortened(lines: list[str]) -> list[str]:
    """What failed and the count of verdicts, in lines of 80 letters as a terminal breaks them."""
    plain = [SEEN.sub("", line) for line in lines]
    start = next(at for at, line in enumerate(plain) if " FAILURES " in line)
    end = next(at for at, line in enumerate(plain) if re.match(r"\d+ limits: ", line))
    return [part for line in lines[start : end + 1] for part in broken(line)]


def broken(line: str) -> list[str]:
    """A line without colours in pieces that 80 columns hold; one with colours as it is."""
    if SEEN.search(line):
        return [line]
    return [line[at : at + 80] for at in range(0, max(len(line), 1), 80)]


def terminal(lines: list[str]) -> str:
    """A session as text in an SVG."""
    kept = ["$ pytest --model-budget", *lines]
    rows = "\n".join(f'<text x="12" y="{24 + LINE * at}">{"".join(spans(line))}</text>' for at, line in enumerate(kept))
    width, height = round(24 + 80 * COLUMN), 24 + LINE * len(kept)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="A red gate in a terminal" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">\n'
        f"<style>{palette(0)} @media (prefers-color-scheme: light) {{ {palette(1)} }}</style>\n"
        f'<rect width="100%" height="100%" rx="6"/>\n{rows}\n</svg>\n'
    )


def palette(ground: int) -> str:
    """The colours on a dark ground (0) or a light one (1)."""
    codes = " ".join(f".c{code} {{ fill: {colours[ground]} }}" for code, colours in COLOURS.items())
    return f"rect {{ fill: {GROUND[ground]} }} text {{ fill: {TEXT[ground]} }} {codes}"


def spans(line: str) -> Iterator[str]:
    """The parts of a line with the colours that its codes ask for; no blank is dropped or broken at."""
    style: set[str] = set()
    parts = SEEN.split(line.replace(" ", "\N{NO-BREAK SPACE}"))
    for at, part in enumerate(parts):
        if at % 2:
            style = style | set(part.split(";")) if part not in {"", "0"} else set()
        elif part:
            colour = next((code for code in sorted(style) if code in COLOURS), "")
            asked = (f' class="c{colour}"' if colour else "") + (' font-weight="bold"' if "1" in style else "")
            yield f"<tspan{asked}>{html.escape(part)}</tspan>" if asked else html.escape(part)


def photograph(page: Path, picture: Path, width: int, height: int, words: str) -> None:
    """What Chromium shows of a page, as a PNG that carries these words."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("there is no Chromium on the PATH")
    profile = page.with_suffix(".profile")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}")
    size = f"--window-size={width},{height}"
    command = [chromium, *flags, size, f"--screenshot={picture}", "--virtual-time-budget=4000", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    chunk = b"iTXtwords\0\0\0\0\0" + SEEN.sub("", words).encode()
    said = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    drawn = picture.read_bytes()
    picture.write_bytes(drawn[:-12] + said + drawn[-12:])  # before the last chunk, IEND


if __name__ == "__main__":
    main()
