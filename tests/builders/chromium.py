"""Headless Chromium, driven by Selenium: what a reader of a page would see and do."""

from __future__ import annotations

import os
import shutil
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
AXE = "axe_core_python"  # brings axe.min.js, by the people who wrote the rules, under MPL-2.0
# The package has axe-core 4.4.3, which knows no aria-description yet (ARIA 1.3); later ones do, and find it valid.
UNKNOWN_TO_AXE = "{rules: {'aria-valid-attr': {enabled: false}}}"
REQUIRED = "MODELBUDGET_BROWSER"  # set where a missing browser is a failure and no reason to skip


def installed(*names: str) -> str | None:
    """The path of the first of these programs that is on the PATH."""
    return next(filter(None, map(shutil.which, names)), None)


def missing() -> str:
    """What a machine lacks to open pages, as a sentence; "" where nothing is."""
    needed = {"chromium": installed(*BROWSERS), DRIVER: installed(DRIVER)}
    lacking = [name for name, path in needed.items() if path is None]
    names = " and no ".join(lacking)
    return f"no {names} on the PATH: apt-get install chromium chromium-driver" if lacking else ""


def missing_axe() -> str:
    """A sentence where axe-core is not installed; "" where it is."""
    return "" if find_spec(AXE) else "no axe-core: pip install 'pytest-modelbudget[test]'"


def skip_without_browser(reason: str = "") -> None:
    """Skip with the reason, or fail where the environment says that there must be a browser."""
    reason = reason or missing()
    if reason and os.environ.get(REQUIRED):
        pytest.fail(reason, pytrace=False)
    if reason:
        # The README's test command must pass where nobody can install a browser; .ci/run
        # installs one, and makes this a failure.
        pytest.skip(reason)


class Browser:
    """One window; width and colours are set for each page that is opened."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = str(installed(*BROWSERS))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=str(installed(DRIVER)))
        self.driver = webdriver.Chrome(options=options, service=service)

    def show(self, page: Path, anchor: str = "", *, width: int = 1280, dark: bool = False) -> None:
        """Open a page anew, and wait until the view that its anchor names is there."""
        tell = self.driver.execute_cdp_cmd
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        tell("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tell("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.driver.get(page.as_uri())
        self.until("return document.readyState === 'complete'")
        if anchor:
            self.go(anchor)

    def go(self, anchor: str) -> None:
        """Follow a link to a view of the open page."""
        self.run(f"location.hash = {anchor!r}")
        self.until("return !document.getElementById('model').hidden")

    def run(self, script: str) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script)

    def until(self, condition: str) -> None:
        """Wait for a condition, a few seconds at most."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 10, poll_frequency=0.02).until(lambda _: self.run(condition))

    def press(self, *keys: str) -> None:
        """Keys, one after another, to whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def words(self, selector: str) -> list[str]:
        """The text of every visible element that a selector finds."""
        return [
            str(text)
            for text in self.run(
                f"return [...document.querySelectorAll({selector!r})]"
                ".filter(e => e.checkVisibility()).map(e => e.textContent.trim())"
            )
        ]

    def violations(self) -> list[str]:
        """What axe-core finds that keeps people from using the open view: its rule, and the elements that break it."""
        if "axe" not in self.run("return Object.keys(window)"):
            self.run(files(AXE).joinpath("axe.min.js").read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(f"axe.run({UNKNOWN_TO_AXE}).then(arguments[0])")
        return [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in found["violations"]]

    def complaints(self) -> list[str]:
        """What the page's console holds since last asked: errors, refusals of the policy."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]
