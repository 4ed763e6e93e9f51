"""The page as text: escaped, self-contained, and true to the record."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_modelbudget.reports.html import page as html_page
from pytest_modelbudget.reports.html.limit_view import MARK, bar, figures, growth, history_view
from pytest_modelbudget.reports.html.model_view import MetricChange, grown_layers, metric_changes
from pytest_modelbudget.reports.html.page import FILES
from pytest_modelbudget.reports.json_records import from_json
from pytest_modelbudget.reports.record import Case, Check, MeasuredMetric, ModelReport, PastNumber, TransformReport
from tests.builders.pages import (
    FILE,
    ODD_NAME,
    Page,
    measured_chain,
    page_record,
    render,
    small_record,
    with_everything,
)
from tests.builders.records import report


def test_user_strings_are_text_and_never_markup() -> None:
    """A model's name with a script in it adds no script, in the page or in its view."""
    page = Page(render(small_record()))
    assert len(page.scripts) == len((*html_page.LIBRARY, *html_page.OWN_SCRIPTS))
    assert ODD_NAME in page.words
    view = Page(page.views()[1]["markup"])
    assert not view.scripts
    assert ODD_NAME in view.words


def test_only_the_projects_own_files_are_left_unescaped() -> None:
    """The templates mark a style sheet and scripts as safe, and no word of the record."""
    texts = [path.read_text(encoding="utf-8") for path in FILES.glob("*.html")]
    assert re.findall(r"{{ (\w+) \| safe }}", "".join(texts)) == ["style", "script"]
    assert "".join(texts).count("safe }}") == 2


def test_the_page_needs_nothing_from_outside() -> None:
    """No element loads anything; the policy forbids it, and runs these scripts only."""
    page = Page(render(small_record()))
    loading = {"src", "href", "data", "srcset", "action", "poster"}
    links = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in loading and not (value or "").startswith("#")
    ]
    assert not links
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base"})
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy is not None
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in page.scripts]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert re.findall(r"sha256-([^']+)'", policy) == digests


def test_the_same_record_is_the_same_page() -> None:
    """No clock and no chance in it."""
    assert render(with_everything()) == render(with_everything())


def test_the_library_is_what_its_project_published() -> None:
    """The files carry the digests that LICENSES.txt names, and their licences go with the page."""
    licences = (FILES / "vendor" / "LICENSES.txt").read_text(encoding="utf-8")
    named = re.findall(r"sha256 ([0-9a-f]{64})", licences)
    found = [hashlib.sha256((FILES / name).read_bytes()).hexdigest() for name in html_page.LIBRARY]
    assert sorted(found) == sorted(named)
    assert licences in Page(render(small_record())).words


def params(check: dict[str, Any], **model: Any) -> Case:
    """A check on params, with what is said about it."""
    full: dict[str, Any] = {
        "id": f"{FILE}::net::params", "metric": "params", "limit": None, "actual": None,
        "baseline": None, "outcome": "within", "level": "error", "line": 6, "reason": "",
        "unit": "param",
    }  # fmt: skip
    known = {"id": f"{FILE}::net", "file": FILE, "line": 3, "metrics": {}, **model}
    owner = from_json(ModelReport, known)
    return Case(from_json(Check, {**full, **check}), owner, owner)


@pytest.mark.parametrize(
    ("check", "fill", "least", "headroom"),
    [
        pytest.param({"actual": 50, "limit": 100}, MARK / 2, "", "50.0% left", id="half"),
        pytest.param({"actual": 100, "limit": 100}, MARK, "", "0.0% left", id="at the limit"),
        pytest.param({"actual": 900, "limit": 100}, 100, "", "800.0% over", id="far over"),
        pytest.param({"actual": 20, "min": 10}, 100, "", "100.0% left", id="twice a minimum"),
        pytest.param({"actual": 60, "limit": 100, "min": 40}, MARK * 0.6, f"{MARK * 0.4}", "40.0% left", id="both"),
        pytest.param({"actual": 60, "limit": 100, "outcome": "unknown"}, MARK * 0.6, "", "?", id="unknown"),
    ],
)
def test_bars_are_as_long_as_the_number_beside_its_limit(
    check: dict[str, Any], fill: float, least: str, headroom: str
) -> None:
    """The limit stands at three quarters of the bar, which ends a third above it."""
    case = params(check)
    length, end = bar(case.check)
    assert (float(length), end, figures(case)[2]) == (fill, least, headroom)


def test_a_limit_without_a_number_has_no_bar() -> None:
    """What was lost with its worker shows neither figure nor headroom."""
    case = params({"outcome": "unknown", "limit": None})
    assert (bar(case.check)[0], *figures(case)) == ("", "–", "–", "?")


def test_growth_is_said_with_what_was_allowed() -> None:
    """Before, after and change."""
    case = params({"actual": 11_000, "baseline": 10_000, "allowed": 10_200})
    assert growth(case.check) == "10.0 k → 11.0 k since the base (+1,000, +10.0%; allowed 10.2 k)"


BLAME = [
    {"scope": "layer4.conv", "name": "weight", "delta": 1200, "before": 40,
     "after": 1240, "shape_before": [10, 4], "shape_after": [10, 124]},
    {"scope": None, "delta": -200, "count": 3},
]  # fmt: skip


def test_layers_that_changed_have_their_figures() -> None:
    """The layer with both shapes; the rest only if there is one."""
    model = ModelReport(id="net", checks=(params({"actual": 11_000, "baseline": 10_000, "blame": BLAME}).check,))
    assert list(grown_layers(model)) == [
        ("params", "layer4.conv.weight", "40", "1,240", "+1,200", "[10, 4] -> [10, 124]"),
        ("params", "(3 others)", "–", "–", "−200", ""),
    ]


def test_allowed_growth_is_a_maximum_too() -> None:
    """130 may be no more than 110, with or without a wider limit; it grew by 30 of 100."""
    for limit in (None, 500):
        check = {"actual": 130, "limit": limit, "baseline": 100, "allowed": 110, "outcome": "over"}
        case = params(check)
        assert figures(case) == ("130", "110", "+30.0% vs base")
        assert float(bar(case.check)[0]) == pytest.approx(MARK * 130 / 110, abs=0.05)


def test_a_claim_shows_its_own_words() -> None:
    """An equivalence is held to no one number: it brings measured and allowed as text."""
    case = params({"measured": "3.2e-4", "allowed": "1e-10", "outcome": "over"})
    assert (*figures(case), bar(case.check)[0]) == ("3.2e-4", "1e-10", "", "")


def test_no_growth_needs_no_words() -> None:
    """Where a number is as it was at the base."""
    assert growth(params({"actual": 500, "baseline": 500}).check) == ""


def test_a_history_is_a_line_in_steps() -> None:
    """Four commits at equal distances; the number was not locked from the third to the fourth."""
    numbers = {"a: 10": 10, "b: 30": 30, "c": None, "d: 20": 20}
    line = history_view([PastNumber(value=value, text=text) for text, value in numbers.items()], "param")
    assert line is not None
    assert line.path == "M0.0 70.0H133.0V0.0H266.0M399.0 35.0H532.0"
    assert [words for _, _, words in line.dots] == ["a: 10", "b: 30", "d: 20"]
    assert line.words == "locked numbers of 4 commits, from 10 to 30"
    assert history_view([PastNumber(value=None, text="gone")], "param") is None


def test_a_broken_maximum_names_its_largest_parts() -> None:
    """Without a base to compare with: fc0 holds 32 of 48 parameters."""
    page = Page(render(small_record()))
    text = " ".join(" ".join(page.words).split())
    layers = "largest layers by params 32 block0.fc0 16 block0.fc1"
    assert f"(+20.0%) budgets/a.yaml:4 {layers} fix: shrink what is largest above" in text


def test_everything_that_others_add_is_shown() -> None:
    """Blame, loosened limits, the lock's words, the base, transforms and unreadable budgets."""
    page = Page(render(with_everything()))
    text = " ".join(" ".join(page.words).split())
    for words in (
        "block0.fc1 new [2, 8]",
        "budget loosened +14.3%: params 35 → 40",
        "forbidden",
        "compared with origin/main",
        "lock stale",
        "budgets/b.yaml:1:1: no",
    ):
        assert words in text
    view = page.views()[0]
    told = " ".join(" ".join(Page(view["markup"]).words).split())
    for words in (
        "tiled",
        "Equivalence ✕ over",
        "First divergence",
        "layer block0.fc1",
        "error 3.2e-4 of its size",
        "most at [0, 1]: 0.5 → 0.25",
        "2 products of 4x2",
        "unchanged: too small",
        "rests on float64",
    ):
        assert words in told
    assert view["divergence"] == [[["0, normal", "3.2e-15"], ["0, zeros", "3.2e-4"]]]


def test_a_device_that_lacks_figures_is_told_once_for_all_that_need_them() -> None:
    """No row says only "unknown": the reason stands below, beside the numbers that it is of."""
    told = " ".join(" ".join(Page(page_of_net()["markup"]).words).split())
    assert "latency_bound unknown: bare gives no rate of float32 MACs: add it to the device" in told
    assert "array_cycles, array_utilisation, array_mapping, array_traffic unknown: bare has no array" in told


def page_of_net() -> Any:
    """The first view of the page that has everything."""
    return Page(render(with_everything())).views()[0]


def test_a_number_measured_in_a_run_says_on_what() -> None:
    """Also where it is within: below its limit stand the inputs, and the layers that it comes from."""
    record = small_record()
    seen = {"measured_on": "measured on drawn inputs, seed 0", "evidence": ["  act0: 3 of 8 values"]}
    (params,) = record["models"][1]["checks"]
    params |= {**seen, "outcome": "within"}
    told = " ".join(Page(Page(render(record)).views()[1]["markup"]).words)
    assert "measured on drawn inputs, seed 0\n  act0: 3 of 8 values" in told


def test_memories_that_are_too_small_name_what_lives_there() -> None:
    """On the card, as in the failure."""
    record = with_everything()
    board = record["models"][0]["deployments"][0]
    board["checks"] = [
        {"id": f"{board['id']}::fits", "metric": "fits", "outcome": "over", "level": "error", "line": 9,
         "reason": "sram 48 B > 40 B", "measured": "sram 48 B", "allowed": "40 B", "limit": None, "actual": None,
         "baseline": None}
    ]  # fmt: skip
    told = " ".join(Page(render(record)).words)
    assert "48 B alive during aten::linear in block0.fc0" in told
    assert "made in block0.fc0" in told


@pytest.mark.parametrize(
    ("number", "told"),
    [
        pytest.param({"complete": True}, "1.00 kB", id="exact"),
        pytest.param({"complete": False}, "≥ 1.00 kB", id="lower bound"),
        pytest.param({"complete": False, "at_least": 900}, "≤ 1.00 kB", id="upper bound"),
    ],
)
def test_a_bound_has_the_sign_of_its_side(number: dict[str, Any], told: str) -> None:
    """A best order that is not proved needs what it needs, or less: never more."""
    record = small_record()
    record["models"][0]["metrics"]["peak_activation_best"] = {"value": 1000, "unit": "B", **number}
    words = [word.strip() for word in Page(Page(render(record)).views()[0]["markup"]).words]
    assert words[words.index("peak_activation_best") :][2] == told


def compared(metric: str, unit: str, before: int, after: int) -> tuple[MetricChange, ...]:
    """The changes of a transform that makes one number of another."""
    numbers = [MeasuredMetric(value=value, unit=unit, complete=True) for value in (before, after)]
    model = ModelReport(id="net", metrics={metric: numbers[0]})
    return tuple(metric_changes(model, TransformReport(id="net::t", name="t", metrics={metric: numbers[1]})))


@pytest.mark.parametrize(
    ("before", "after", "change", "fill"),
    [
        pytest.param(100, 100, "same", "75.0", id="same"),
        pytest.param(100, 120, "+20.0%", "90.0", id="more"),
        pytest.param(100, 50, "-50.0%", "37.5", id="less"),
        pytest.param(100, 9000, ">+999%", "100.0", id="far more"),
        pytest.param(0, 5, "new", "", id="from nothing"),
    ],
)
def test_transforms_show_each_metric_before_and_after(before: int, after: int, change: str, fill: str) -> None:
    """The bar of what was before ends at three quarters."""
    (shown,) = compared("macs", "MAC", before, after)
    assert (shown.change, shown.fill) == (change, fill)


def test_a_change_too_small_to_see_is_written_out() -> None:
    """1,430,168 and 1,430,169 both round to 1.43 M: every digit is shown instead."""
    (shown,) = compared("flops", "FLOP", 1_430_168, 1_430_169)
    assert (shown.before, shown.after) == ("1,430,168 FLOP", "1,430,169 FLOP")


def test_a_model_that_could_not_be_loaded_says_why() -> None:
    """Its limits are unknown, and its view holds no plot."""
    record = page_record({"net": (measured_chain([4, 4]), {"params": 10})})
    (model,) = record["models"]
    model |= {"metrics": {}, "ops": [], "error": "no module named 'zoo'"}
    del model["profile"]
    model["checks"][0] |= {"outcome": "unknown", "actual": None, "reason": "params unknown: no"}
    page = Page(render(record))
    (view,) = page.views()
    assert view["profile"] is None
    assert "no module named 'zoo'" in Page(view["markup"]).words
    assert "net: 1 limit unknown: no module named 'zoo' budgets/a.yaml:4" in " ".join(" ".join(page.words).split())


def test_limits_that_never_came_to_their_turn_are_said_aloud() -> None:
    """A session that was stopped is not green on its page either."""
    page = Page(render({**small_record(), "unanswered": 2}))
    text = " ".join(" ".join(page.words).split())
    assert "? unknown 2 limits skipped or stopped, and so not measured" in text


def test_a_session_without_limits_has_a_page_that_is_not_green() -> None:
    """Nothing measured is said at its top, and nothing is within."""
    page = Page(html_page.render(report()))
    text = " ".join(" ".join(page.words).split())
    assert "? unknown nothing measured" in text
    assert not [tag for tag, attributes in page.tags if attributes.get("class") == "status within"]


@pytest.mark.parametrize(
    ("base", "told"),
    [
        pytest.param("0123456789abcdef0123456789abcdef01234567", "0123456789ab", id="commit"),
        pytest.param("origin/main", "origin/main", id="name"),
    ],
)
def test_the_base_is_named_shortly(base: str, told: str) -> None:
    """Twelve digits of a commit, a name in full."""
    page = Page(render({**small_record(), "base": base}))
    assert f"compared with {told}" in page.words


CHECKOUT = {
    "project": "team/nets", "branch": "wider", "commit": "0123456789abcdef0123456789abcdef01234567",
    "date": "2026-11-22T08:04:38+00:00", "files": "https://forge.example/team/nets/blob/0123456789abcdef/",
}  # fmt: skip


def test_the_head_says_what_was_measured() -> None:
    """The verdict, then project, branch, commit and its day, the base, and versions."""
    record = {**with_everything(), "checkout": CHECKOUT}
    page = Page(render(record))
    text = " ".join(" ".join(page.words).split())
    assert (
        "project team/nets branch wider commit 0123456789ab committed 2026-11-22 08:04 base origin/main "
        "measured with python"
    ) in text
    assert "Model budget ✕ 2 of 6 limits fail in 1 model, and 2 other problems 6 limits: 2 over" in text


def test_a_line_is_linked_where_the_forge_is_known() -> None:
    """On cards, in the table and in a model's view; of nothing outside of the project."""
    page = Page(render({**small_record(), "checkout": CHECKOUT}))
    links = [attributes["href"] for tag, attributes in page.tags if attributes.get("class") == "place"]
    assert f"{CHECKOUT['files']}budgets/a.yaml#L4" in links
    assert len(links) == 1 + 4  # of the limit that is warned of, on a card, and of all
    assert f"{CHECKOUT['files']}budgets/a.yaml#L4" in page.views()[0]["markup"]
    assert not [attributes for tag, attributes in Page(render(small_record())).tags if "rel" in attributes]


def test_a_model_says_where_it_comes_from() -> None:
    """The words of its budget, and nothing of keys that it does not say."""
    record = small_record()
    record["models"][0]["declared"] = {"source": "torch nets:net", "kwargs": "{width: 0.5}"}
    told = " ".join(" ".join(Page(Page(render(record)).views()[0]["markup"]).words).split())
    assert "source torch nets:net kwargs {width: 0.5} Limits" in told


def test_numbers_and_layers_stand_beside_the_base() -> None:
    """params grew from 32 to 48, all of it in a layer that is new; no lock knows the others."""
    told = " ".join(" ".join(Page(page_of_net()["markup"]).words).split())
    assert "params 48 32 → 48 since the base (+16, +50.0%; allowed 33) elements of distinct parameters" in told
    assert "Number Layer Base Now Change Shape params block0.fc1.weight – 16 +16 new [2, 8] Numbers" in told


def test_a_card_says_where_outputs_part_and_how_to_repeat_it() -> None:
    """In the overview, without opening a view."""
    text = " ".join(" ".join(Page(render(with_everything())).words).split())
    assert "first layer that differs: block0.fc1, by 3.2e-4 of its size, most at [0, 1]: 0.5 -> 0.25" in text
    assert "worst output element: '0', zeros inputs, most at [0, 1]: 0.5 -> 0" in text
    assert "repeat: pytest --model-budget budgets/a.yaml::net::tiled::equivalence Copy" in text


def test_a_broken_limit_says_what_accepts_it() -> None:
    """The command that the gate knows, to be copied."""
    record = small_record()
    command = "pytest --model-budget --model-budget-update=fix budgets/a.yaml::net::params"
    record["models"][0]["checks"][0]["update"] = command
    text = " ".join(" ".join(Page(render(record)).words).split())
    assert f"fix: shrink what is largest above, or accept: {command} Copy" in text


def test_every_table_has_a_caption() -> None:
    """Those of the page, and those that a view's markup brings; scripts caption their own."""
    page = Page(render(with_everything()))
    markup = [Page(view["markup"]) for view in page.views()]
    for each in (page, *markup):
        tags = [tag for tag, _ in each.tags]
        assert tags.count("table") == tags.count("caption") > 0


def test_many_troubles_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cards above the table end somewhere, those that need a look first; the table does not."""
    monkeypatch.setattr(html_page, "MOST_NOTICED", 1)
    monkeypatch.setattr(html_page, "MOST_CARDS", 1)
    page = Page(render(small_record()))
    assert sum(attributes.get("class") == "card over" for _, attributes in page.tags) == 1
    assert "… and 1 more, in the table below." in " ".join(page.words)


def test_the_template_folder_is_part_of_the_package() -> None:
    """What render() reads stands beside it, and nothing else does."""
    read = {*html_page.LIBRARY, *html_page.OWN_SCRIPTS, *html_page.STYLES,
            "page.html", "parts.html", "model.html", "vendor/LICENSES.txt"}  # fmt: skip
    there = {
        path.relative_to(FILES).as_posix() for path in Path(FILES).rglob("*.*") if path.suffix not in {".py", ".pyc"}
    }
    assert there == read
