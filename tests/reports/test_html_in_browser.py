"""The page in headless Chromium: offline, usable by keyboard, nothing cut and no overlap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_modelbudget.budget.lock_file import LockedValue
from pytest_modelbudget.metrics.growth import Part
from pytest_modelbudget.reports.html.profile import with_base
from tests.builders.chromium import Browser, missing_axe, skip_without_browser
from tests.builders.pages import (
    ODD_NAME,
    many_models,
    measured_chain,
    page_record,
    small_record,
    with_everything,
    written,
)

pytestmark = pytest.mark.browser

NET, LATE = "model-net", "model-late"  # the addresses of models
ODD = "model-a-b-c-script-document.title-owned-script-amp"

WIDTHS = [pytest.param(1280, id="desktop"), pytest.param(768, id="tablet"), pytest.param(390, id="phone")]
# Text that does not fit into its figure, or touches another text of the same drawing.
CUT_OR_OVERLAPPING = """
  const troubles = [];
  for (const figure of document.querySelectorAll("#model figure")) {
    const frame = figure.getBoundingClientRect();
    for (const svg of figure.querySelectorAll("svg")) {
      const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
      const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
      boxes.forEach(([words, box], at) => {
        if (box.left < frame.left || box.right > frame.right || box.top < frame.top
            || box.bottom > frame.bottom) troubles.push(`cut: ${words}`);
        for (const [other, next] of boxes.slice(at + 1)) {
          const wide = Math.min(box.right, next.right) - Math.max(box.left, next.left);
          const high = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
          if (wide > 1 && high > 3) troubles.push(`overlap: ${words} / ${other}`);
        }
      });
    }
  }
  return troubles;
"""
# The same of words over the rectangles of a drawing, in the one colour that such words have.
LOW_CONTRAST_INSIDE = """
  const light = (colour) => colour.match(/[\\d.]+/g).map(Number).slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const figure = document.querySelector("[data-plot=arena]");
  const words = light(getComputedStyle(figure).color);
  const fills = [...figure.querySelectorAll(".pieces rect")].map((rect) => getComputedStyle(rect).fill);
  return [...new Set(fills)].filter((fill) => {
    const behind = light(fill);
    return (Math.max(words, behind) + 0.05) / (Math.min(words, behind) + 0.05) < 4.5;
  });
"""
# Height of the tallest name of a limit: six lines are enough for the oddest one here.
TALLEST_NAME = """
  const names = [...document.querySelectorAll("tr.limit > th")].filter((e) => e.checkVisibility());
  return Math.max(...names.map((name) => name.getBoundingClientRect().height));
"""
# Words beside the colour that they are read on, as contrast ratios below what WCAG AA asks for.
LOW_CONTRAST = """
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => channels(colour).slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  };
  const low = new Set();
  for (const element of document.querySelectorAll("main:not([hidden]) *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.add(`${element.tagName}.${element.className}: ${ratio.toFixed(2)}`);
  }
  return [...low];
"""
# Each limit that is over or warned of: where it stands and its verdict, the verdict's colour, and that of its headroom.
COLOURS_OF_VERDICTS = """
  const colour = (element) => getComputedStyle(element).color;
  return [...document.querySelectorAll(".card .notice:has(.room), tr.limit:is(.over, .warn)")].map((limit) => {
    const verdict = limit.querySelector(".status");
    const place = limit.closest(".card") ? "card" : "table";
    return [`${place} ${verdict.classList[1]}`, colour(verdict), colour(limit.querySelector(".room"))];
  });
"""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    skip_without_browser()
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.driver.quit()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(small_record(), tmp_path_factory.mktemp("small") / "page.html")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(with_everything(), tmp_path_factory.mktemp("everything") / "page.html")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(many_models(500), tmp_path_factory.mktemp("many") / "page.html")


def test_500_models_stand_in_one_table(browser: Browser, many: Path) -> None:
    """Three limits each; how long that takes to open is for benchmarks/page_opening.py to say."""
    browser.show(many)
    assert browser.run("return document.querySelectorAll('#limits tr.limit').length") == 1500


def test_nothing_is_fetched_and_nothing_complains(browser: Browser, everything: Path) -> None:
    """Every view opens without a request, an error or a refusal by the page's own policy."""
    browser.show(everything)
    browser.complaints()
    for anchor in (NET, ODD, "overview"):
        browser.run(f"location.hash = {anchor!r}")
        hidden = "true" if anchor == "overview" else "false"
        browser.until(f"return document.getElementById('model').hidden === {hidden}")
    assert browser.complaints() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_a_hostile_name_stays_a_name(browser: Browser, small: Path) -> None:
    """It is read as text, and its script never ran."""
    browser.show(small, ODD)
    assert browser.words("#model h1") == [ODD_NAME]
    assert browser.run("return document.title") == f"{ODD_NAME} · model budget"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_is_cut_and_none_overlaps(browser: Browser, everything: Path, width: int) -> None:
    """In all drawings of a model; the page never scrolls sideways, and no name is a tall column."""
    for anchor in ("", NET, ODD, LATE):
        browser.show(everything, anchor, width=width)
        assert browser.run(CUT_OR_OVERLAPPING) == []
        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.run(TALLEST_NAME) < 6 * 22
    browser.go(NET)
    assert browser.run("return document.querySelectorAll('#model figure svg').length") >= 4


@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")])
def test_words_stand_out_from_what_is_behind_them(browser: Browser, everything: Path, dark: bool) -> None:
    """WCAG AA: 4.5 to 1 or better for all text; and dark is dark."""
    for anchor in ("", NET):
        browser.show(everything, anchor, dark=dark)
        assert browser.run(LOW_CONTRAST) == []
    page = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert page == ("rgb(18, 21, 25)" if dark else "rgb(247, 247, 245)")


@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")])
def test_a_figure_has_the_colour_of_its_own_verdict(browser: Browser, small: Path, dark: bool) -> None:
    """On the card of a model that is over, a limit that is only warned of is not red; nor in the table."""
    browser.show(small, dark=dark)
    colours = browser.run(COLOURS_OF_VERDICTS)
    assert [verdict for verdict, *_ in colours if "card" in verdict] == ["card warn"]
    assert [row for row in colours if row[1] != row[2]] == []


@pytest.mark.parametrize("width", [pytest.param(1280, id="desktop"), pytest.param(390, id="phone")])
def test_nobody_is_kept_from_using_the_page(browser: Browser, everything: Path, width: int) -> None:
    """axe-core finds no violation of its rules in the overview, and none in a view with every part."""
    if reason := missing_axe():
        skip_without_browser(reason)
    browser.show(everything, width=width)
    assert browser.violations() == []
    browser.go(NET)
    assert browser.violations() == []


def test_limits_are_filtered_by_words_and_verdicts(browser: Browser, many: Path) -> None:
    """model7 is one of 7, 70 to 79 and 700 and on (none): 11 models of 3 limits."""
    browser.show(many)
    browser.run("document.getElementById('filter').focus()")
    browser.press("model7 macs")
    assert browser.words("#shown") == ["11 of 1,500 limits"]
    browser.run("document.querySelector('[value=within]').click()")
    assert browser.words("#shown") == ["0 of 1,500 limits"]


def test_limits_are_ordered_by_headroom(browser: Browser, many: Path) -> None:
    """The tightest first; 72 of 500 models are over, every seventh from 0 on."""
    browser.show(many)
    browser.run(
        "const order = document.getElementById('order'); order.value = 'room';"
        "order.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    verdicts = browser.words("#limits tr.limit .status")
    assert len(verdicts) == 1500
    assert [word.split()[1] for word in verdicts[:72]] == ["over"] * 72
    assert {word.split()[1] for word in verdicts[72:]} == {"within"}
    rooms = browser.run("return [...document.querySelectorAll('#limits tr.limit')].map(r => +r.dataset.room)")
    assert rooms == sorted(rooms)


def test_layers_are_sorted_by_keyboard(browser: Browser, small: Path) -> None:
    """Enter on a heading: largest first, then smallest, then execution order again."""
    browser.show(small, NET)
    names = "[data-table=layers] tbody th"
    in_order = ["(model)", "block0", "fc0", "act0", "fc1", "act1"]
    assert browser.words(names) == in_order
    browser.run("document.querySelector('[data-key=macs] button').focus()")
    browser.press("\ue007")
    assert browser.words(names)[:2] == ["block0.fc0", "block0.fc1"]
    sorted_by = "return document.querySelector('[data-key=macs]').getAttribute('aria-sort')"
    assert browser.run(sorted_by) == "descending"
    browser.press("\ue007")
    assert browser.words(names)[-2:] == ["block0.fc1", "block0.fc0"]
    browser.press("\ue007")
    assert browser.words(names) == in_order
    assert browser.run(sorted_by) is None


def test_layers_are_filtered_with_their_sum(browser: Browser, small: Path) -> None:
    """Linear layers 4 -> 8 -> 2: 48 parameters, 192 bytes of weights, 48 MACs."""
    browser.show(small, NET)
    browser.run("document.querySelector('[data-table=layers] input').focus()")
    browser.press("linear")
    assert browser.words("[data-table=layers] tbody th") == ["block0.fc0", "block0.fc1"]
    assert browser.words("[data-table=layers] tfoot .number")[:3] == ["48", "192", "48"]


def test_every_view_is_reached_by_links_and_left_by_the_back_button(browser: Browser, small: Path) -> None:
    """Enter on a model's name opens its view with the focus on its heading; back closes it."""
    browser.show(small)
    browser.run("document.querySelector('#limits a').focus()")
    browser.press("\ue007")
    browser.until("return document.activeElement.tagName === 'H1'")
    assert browser.words("#model h1") == ["net"]
    browser.driver.back()
    browser.until("return document.getElementById('model').hidden")
    assert browser.words("#overview h1") == ["Model budget"]


def test_an_address_names_a_view_and_a_section_of_it(browser: Browser, small: Path) -> None:
    """Opened from outside, page.html#model-NAME:layers shows the layers of the second model."""
    screen = {"width": 1280, "height": 400, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.driver.get("about:blank")
    browser.driver.get(f"{small.as_uri()}#{ODD}:layers")
    browser.until("return window.scrollY > 0")
    assert browser.words("#model h1") == [ODD_NAME]
    top = browser.run("return document.querySelector('[data-section=layers]').getBoundingClientRect().top")
    assert 0 <= top < 100


def test_an_old_browser_is_told_why_views_stay_closed(browser: Browser, small: Path) -> None:
    """One sentence in place of the view, and a way back."""
    browser.show(small)
    browser.run("delete window.DecompressionStream")
    browser.go(NET)
    (heading,) = browser.words("#model h1")
    assert heading.startswith("This browser is too old")
    browser.driver.back()
    browser.until("return document.getElementById('model').hidden")


def test_the_peak_and_its_owners_are_told_in_words(browser: Browser, small: Path) -> None:
    """fc0 and act0 of 8 floats each live at the peak: 64 bytes, under a limit of 100."""
    browser.show(small, NET)
    (caption,) = browser.words("[data-plot=memory] figcaption")
    assert caption.startswith("At most 64 B of activations live at once, during aten::relu in ")
    assert browser.words("[data-table=owners] tbody td.number") == ["32", "50%", "32", "50%"]
    labels = browser.words("[data-plot=memory] svg text")
    assert {"peak 64 B", "limit 100 B"} <= set(labels)
    assert labels[-2:] == ["block0.fc0  32 B, 50%", "block0.act0  32 B, 50%"]
    assert (
        browser.run(
            "return document.querySelector('[data-plot=memory] svg:last-child').getAttribute('aria-description')"
        )
        == "block0.fc0, steps 0 to 1; block0.act0, steps 1 to 2"
    )


def test_memory_in_service_is_told_in_words(browser: Browser, everything: Path) -> None:
    """Weights of 192 bytes, 8 reserved, and 3 for each token: 296 behind 32, and 392 behind 64; 300 hold the first."""
    browser.show(everything, NET)
    (caption,) = browser.words("[data-plot=serving] figcaption")
    assert caption.startswith(
        "Behind 32 tokens, the dotted line, service takes 296 B. Behind 64 tokens it takes 392 B."
    )
    assert browser.words("[data-plot=serving] .key li") == ["weights", "cache", "activations", "reserve"]
    assert "memory 300 B" in browser.words("[data-plot=serving] svg text")
    browser.show(everything, LATE)
    assert browser.words("[data-section=serving]") == []


ICICLE = "#model [data-plot=icicle]"


def test_a_module_is_found_by_keys(browser: Browser, small: Path) -> None:
    """fc0 holds 32 of 48 parameters and fc1, the last, 16: a third; activations have none, and are not drawn."""
    browser.show(small, NET, width=390)
    (caption,) = browser.words(f"{ICICLE} figcaption")
    assert caption.startswith("All 48 parameters by module")
    assert browser.words(f"{ICICLE} svg text") == ["(model)", "block0", "fc0", "fc1"]
    browser.run(f"document.querySelector('{ICICLE} svg').focus()")
    browser.press("\ue010")
    assert browser.words(f"{ICICLE} .says") == ["block0.fc1: 16 parameters, 33% of all"]
    browser.run("document.querySelector('[data-icicle] [value=macs]').click()")
    (caption,) = browser.words(f"{ICICLE} figcaption")
    assert caption.startswith("All 48 MACs by module")


def test_modules_have_the_colour_of_their_change(browser: Browser, tmp_path: Path) -> None:
    """fc0 had 40 parameters and has 32, fc1 had none: the model grew from 40 to 48. MACs were not locked."""
    record = small_record()
    base = {"params": LockedValue(40, "param", (Part("block0.fc0", 40, "weight"),)), "macs": None}
    record["models"][0]["profile"] = with_base(record["models"][0]["profile"], base)
    browser.show(written(record, tmp_path / "page.html"), NET)
    assert browser.words(f"{ICICLE} svg text") == ["▲ (model)", "▲ block0", "▼ fc0", "▲ fc1"]
    fills = f"return [...document.querySelectorAll('{ICICLE} .pieces rect')].map(r => r.getAttribute('fill'))"
    assert browser.run(fills) == [f"var(--{name})" for name in ("grew", "grew", "shrank", "grew")]
    assert browser.words(f"{ICICLE} .key li") == ["▲ grew since the base", "▼ shrank"]
    says = []
    for key in ("\ue011", "\ue014", "\ue014", "\ue014"):
        browser.run(f"document.querySelector('{ICICLE} svg').focus()")
        browser.press(key)
        says += browser.words(f"{ICICLE} .says")
    assert says == [
        "(model): 48 parameters, 100% of all; +8 since the base, +20%",
        "block0: 48 parameters, 100% of all; +8 since the base, +20%",
        "block0.fc0: 32 parameters, 67% of all; -8 since the base, -20%",
        "block0.fc1: 16 parameters, 33% of all; +16 since the base, new",
    ]
    browser.run("document.querySelector('[data-icicle] [value=macs]').click()")
    assert "The base has no macs of this model" in browser.words(f"{ICICLE} figcaption")[0]
    assert browser.words(f"{ICICLE} svg text") == ["(model)", "block0", "fc0", "fc1"]


@pytest.mark.parametrize(("figure", "caption"), [("peak", "All 64 bytes at the peak"), ("traffic", "All 360 bytes")])
def test_memory_and_traffic_are_drawn_by_module(browser: Browser, small: Path, figure: str, caption: str) -> None:
    """fc0 and act0 of 32 bytes live at the peak; moved are 16+128+32, 32+32, 32+64+8 and 8+8."""
    browser.show(small, NET)
    browser.run(f"document.querySelector('[data-icicle] [value={figure}]').click()")
    assert browser.words(f"{ICICLE} figcaption")[0].startswith(caption)


def test_layers_fold_into_their_container(browser: Browser, small: Path) -> None:
    """block0 has 48 parameters in four layers; folded by keyboard, it keeps the focus and its sums."""
    browser.show(small, NET)
    row = "[data-table=layers] tbody tr"
    assert len(browser.words(row)) == 6
    browser.run("document.querySelector('[data-table=layers] tbody .fold').focus()")
    browser.press("\ue007")
    assert browser.words("[data-table=layers] tbody th") == ["(model)", "block0"]
    assert browser.words(f"{row}:last-child .number")[2:5] == ["48", "192", "48"]
    assert browser.run("return document.activeElement.getAttribute('aria-expanded')") == "false"
    browser.press("\ue007")
    assert len(browser.words(row)) == 6


@pytest.mark.parametrize(
    ("answer", "told"),
    [pytest.param("resolve", "Copied", id="copied"), pytest.param("reject", "Selected", id="refused")],
)
def test_a_command_is_copied_or_selected(browser: Browser, everything: Path, answer: str, told: str) -> None:
    """Where a browser refuses its clipboard, the command is selected, for the reader to copy."""
    browser.show(everything)
    browser.run(
        "window.written = []; navigator.clipboard.writeText = (text) => { window.written.push(text);"
        f"return Promise.{answer}(); }}; document.querySelector('.copy').click()"
    )
    browser.until(f"return document.querySelector('.copy').textContent === '{told}'")
    command = "pytest --model-budget budgets/a.yaml::net::tiled::equivalence"
    assert browser.run("return window.written") == [command]
    assert browser.run("return getSelection().toString()") == (command if told == "Selected" else "")


ARENA = "#model [data-plot=arena][data-position='0']"


def test_a_buffer_is_found_by_keys_and_pointer(browser: Browser, everything: Path) -> None:
    """x, fc0 and fc1 are 16, 32 and 8 bytes: End is the last of them, and a line says its offset, layer and life."""
    browser.show(everything, NET)
    (hint,) = browser.words(f"{ARENA} .says")
    assert hint == "Point at a buffer, or press ← and → here."
    browser.run(f"""document.querySelector("{ARENA} svg").focus()""")
    browser.press("\ue014", "\ue014")
    words = "block0.fc0, made by aten::linear: 1×8 float32, 32 B at 0 to 32, steps 0 to 1"
    assert browser.words(f"{ARENA} .says") == [words]
    chosen = f"""return document.querySelector("{ARENA} svg").getAttribute("aria-valuetext")"""
    assert browser.run(chosen) == words
    browser.press("\ue010")
    assert browser.words(f"{ARENA} .says") == ["block0.fc1, made by aten::linear: 1×2 float32, 8 B at 32 to 40, step 1"]
    browser.run(f"""document.querySelector("{ARENA} .pieces rect").dispatchEvent(new PointerEvent("pointerover"))""")
    assert browser.run(chosen) == "input of the model: 1×4 float32, 16 B at 32 to 48, step 0"


def test_a_deployment_is_told_in_words(browser: Browser, everything: Path) -> None:
    """The arithmetic is in test_device_profile; of a device without figures the page says what is lacking."""
    browser.show(everything, NET)
    captions = browser.words("[data-section=deployments] figcaption")
    assert [caption.split(":")[0].split(".")[0] for caption in captions] == [
        "3 buffers in an arena of 48 B, placed by greedy_by_size, aligned to 1 B",
        "Of activations live at once as written at most 64 B in 4 steps; lowered, at most 48 B in 2 steps, 75% of that",
        "At best 1",
        "An array of 2 × 2, weight stationary, takes 60 cycles for 48 MACs",
        "3 buffers in an arena of 48 B, placed by greedy_by_size, aligned to 16 B",
        "Of activations live at once as written at most 64 B in 4 steps; lowered, at most 48 B in 2 steps, 75% of that",
        "No operation's time is bounded",
    ]
    assert "one operation after another: flash decides 62%, sram decides 38%." in captions[2]
    assert "20% of what it could multiply" in captions[3]
    assert "Without a bound: 2 operations (bare gives no rate of float32 MACs)." in captions[6]
    assert browser.words("[data-section=deployments] td").count("") == 0


@pytest.mark.parametrize("dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")])
def test_names_stand_out_from_their_buffers(browser: Browser, everything: Path, dark: bool) -> None:
    """WCAG AA in the drawing, too: text on every colour that a buffer has."""
    browser.show(everything, LATE, dark=dark)
    low = browser.run(LOW_CONTRAST_INSIDE)
    assert low == []


CHOOSE = """
  const form = document.querySelector("[data-machine]");
  form.device.value = {device};
  form.device.dispatchEvent(new Event("input", {{bubbles: true}}));
"""


def test_the_roofline_is_drawn_for_a_chosen_device(browser: Browser, small: Path) -> None:
    """2·48 + 10 FLOPs at 2·294.4 GFLOP/s: less time than 360 bytes at 38.4 GB/s."""
    browser.show(small, NET)
    assert browser.words("[data-plot=roofline], [data-table=ops] td, [data-machine] [type=number]") == []
    browser.run(CHOOSE.format(device="'laptop_cpu, float32'"))
    (caption,) = browser.words("[data-plot=roofline] figcaption")
    assert "memory decides 100% of it, below 15.3 FLOP per byte" in caption
    figures = "const form = document.querySelector('[data-machine]'); return [+form.flops.value, +form.bytes.value]"
    assert browser.run(figures) == [588.8, 38.4]
    browser.run(CHOOSE.format(device="''"))
    assert browser.words("[data-plot=roofline], [data-table=ops] td") == []


def test_the_roofline_follows_the_machine(browser: Browser, small: Path) -> None:
    """At 1 FLOP/s and 1 TB/s all is bound by compute: 2·48 + 10 FLOPs take 106 s at best."""
    browser.show(small, NET)
    browser.run(
        CHOOSE.format(device="'another'") + "form.flops.min = form.flops.value = 1e-9; form.bytes.value = 1000;"
        "form.bytes.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    (caption,) = browser.words("[data-plot=roofline] figcaption")
    assert caption.startswith("At best 106 s on this machine")
    assert "memory decides 0.0% of it" in caption
    assert set(browser.words("[data-table=ops] td:last-child")) == {"compute"}


def test_drawings_follow_the_width_of_the_window(browser: Browser, small: Path) -> None:
    """Turned into a phone, the page draws anew and keeps within it."""
    browser.show(small, NET, width=1280)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.until("return document.querySelector('#model svg').getAttribute('width') < 390")
    assert browser.run(CUT_OR_OVERLAPPING) == []


def test_every_drawing_says_in_words_what_it_shows(browser: Browser, everything: Path) -> None:
    """A label and a description for readers who hear the page, and a table beside each."""
    browser.show(everything, NET)
    described = browser.run(
        "return [...document.querySelectorAll('#model figure svg')]"
        ".map(svg => [svg.getAttribute('aria-label'), svg.getAttribute('aria-description')])"
    )
    assert len(described) >= 4
    assert all(label and description for label, description in described)


def test_drawings_are_made_anew_for_paper(browser: Browser, small: Path) -> None:
    """As wide as a sheet while it is printed, and as wide as the window again."""
    browser.show(small, NET, width=1280)
    width = "return +document.querySelector('#model svg').getAttribute('width')"
    browser.run("window.seen = []; window.addEventListener('beforeprint', () => "
                f"window.seen.push((() => {{ {width} }})()))")  # fmt: skip
    assert browser.run(width) > 1000
    browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert browser.run("return window.seen") == [680]
    assert browser.run(width) > 1000


@pytest.mark.parametrize(("width", "shares"), [(1280, True), (390, False)], ids=["desktop", "phone"])
def test_a_cause_has_the_whole_width_and_no_limit_again(
    browser: Browser, tmp_path: Path, width: int, shares: bool
) -> None:
    """Its lines are as wide as a terminal's; models that are within share theirs on a wide screen."""
    broken = {"params": "1", "macs": "1", "flops": "1", "bandwidth": "1"}
    within = (measured_chain([4, 8]), {"params": "1 k"})
    models = {"many": (measured_chain([4, 8, 4]), broken), "one": within, "two": within}
    browser.show(written(page_record(models), tmp_path / "page.html"), width=width)
    assert browser.words(".card h3 a") == ["many", "one", "two"]
    assert browser.words(".notice") == []
    wide = "const all = document.querySelector('.cards').getBoundingClientRect().width;"
    cards = "[...document.querySelectorAll('.cards > .card')]"
    parts = browser.run(f"{wide} return {cards}.map(card => card.getBoundingClientRect().width / all > 0.9)")
    assert parts == [True, not shares, not shares]


def test_paper_shows_tables_whole_and_no_controls(browser: Browser, small: Path) -> None:
    """On paper nothing scrolls, and a filter is of no use; light also for a dark reader."""
    browser.show(small, width=700, dark=True)  # what fits on A4
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run(TALLEST_NAME) < 6 * 22
    browser.go(NET)
    assert browser.words("nav, #model [data-table=layers] .controls") == []
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == ("rgb(255, 255, 255)")
    assert browser.words(".tall th button") == []  # with a button in it, Chromium repeats no head on the next sheet
    head = "document.querySelector('.tall th[data-key=macs]')"
    assert browser.run(f"return getComputedStyle({head}, '::after').content") == '"MACs"'
    tall = "document.querySelector('.tall')"
    assert browser.run(f"return getComputedStyle({tall}).maxHeight") == "none"
