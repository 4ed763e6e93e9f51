"""What the page of 500 models, with 1,500 limits, takes to open in headless Chromium, beside that of ten models.

From the request to the load event, in milliseconds; the pages take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.builders.chromium import Browser, missing
from tests.builders.pages import many_models, written

MODELS = (10, 500)
LOADED = "return performance.getEntriesByType('navigation')[0].loadEventEnd"


def opened(browser: Browser, page: Path) -> float:
    """Milliseconds from the request to the load event."""
    browser.show(page)
    return float(browser.run(LOADED))


def main() -> None:
    """Print medians as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of both pages (5)")
    rounds = parser.parse_args().rounds
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        pages = [written(many_models(count), Path(folder) / f"{count}.html") for count in MODELS]
        times = [[opened(browser, page) for page in pages] for _ in range(rounds)]
        browser.driver.quit()
    taken = [median(each) for each in zip(*times, strict=True)]
    print("| models | ms | of the smaller |")
    print("|---|---|---|")
    for count, each in zip(MODELS, taken, strict=True):
        print(f"| {count} | {each:.0f} | {each / taken[0]:.1f} |")


if __name__ == "__main__":
    main()
