"""The table at the end of a run: 80 columns, figures aligned, what matters first."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from pytest_modelbudget.budget.budget import Level, Limit, Place
from pytest_modelbudget.budget.verdict import judge
from pytest_modelbudget.metrics.measured_model import MeasuredModel
from pytest_modelbudget.metrics.measurement import Measurement, Share, UnmeasuredOp
from pytest_modelbudget.metrics.table import metric_table
from pytest_modelbudget.reports.build import check_report, model_report
from pytest_modelbudget.reports.json_records import from_json
from pytest_modelbudget.reports.record import BrokenFile, Check, ModelReport, Report, Version
from pytest_modelbudget.reports.terminal import Detail, counted, lines
from pytest_modelbudget.reports.text import cut_middle
from tests.builders import records

FILE = "budgets/vision.yaml"
MACS = Measurement(1_814_073_344, "MAC", shares=(Share("layer1", 814_073_344), Share("fc", 10**9)))
PARAMS = Measurement(11_689_512, "param", shares=(Share("", 11_689_512),))


def report(*models: ModelReport, broken: tuple[BrokenFile, ...] = ()) -> Report:
    return Report(schema=Version.ONE, models=models, broken=broken)


def one_model(*limits: Limit, name: str = "resnet18") -> Report:
    model_id = f"{FILE}::{name}"
    measurements = {"macs": MACS, "params": PARAMS}
    model = MeasuredModel("torch", "meta", measurements=measurements)
    checks = [
        check_report(f"{model_id}::{limit.metric}", judge(limit, measurements[limit.metric]), metric_table())
        for limit in sorted(limits, key=lambda limit: limit.place.line)
    ]
    return report(replace(model_report(model_id, Place(FILE, 3), model), checks=tuple(checks)))


def limit(metric: str, most: int, level: Level = Level.ERROR) -> Limit:
    return Limit(metric, Place(FILE, most % 97 + 1), max=most, level=level)


def text(record: Report, detail: Detail) -> list[str]:
    return [line.text for line in lines(record, detail)]


def test_the_table_is_aligned_and_fits() -> None:
    """Measured, limit and change end in the same column on every line."""
    record = one_model(limit("macs", 1_820_000_000), limit("params", 11_000_000))
    shown = text(record, Detail.ALL)
    assert shown == [
        "budgets/vision.yaml                 measured      limit     change",
        "resnet18",
        "over    params                       11.69 M    11.00 M  6.3% over [#########+]",
        "within  macs                      1.814 GMAC 1.820 GMAC 0.33% left [#########.]",
    ]
    assert max(map(len, shown)) < 80


@pytest.mark.parametrize("length", [1, 30, 200])
def test_a_long_name_is_cut_in_its_middle(length: int) -> None:
    """Its beginning and the metric stay readable."""
    shown = text(one_model(limit("macs", 10), name="m" * length), Detail.TIGHTEST)
    assert max(map(len, shown)) < 80
    assert shown[1].startswith("over    m")
    assert "::macs " in shown[1]


@pytest.mark.parametrize("length", [1, 30, 200])
def test_with_v_a_long_name_stands_on_a_line_of_its_own(length: int) -> None:
    """Cut only where a whole line is too short for it."""
    shown = text(one_model(limit("macs", 10), name="m" * length), Detail.ALL)
    assert max(map(len, shown)) < 80
    assert set(shown[1]) <= {"m", "."}
    assert shown[2].startswith("over    macs ")


@pytest.mark.parametrize("others", [14, 15])
def test_of_more_than_15_limits_what_is_not_within_is_shown_and_the_tightest(others: int) -> None:
    """Warnings are shown whatever the level of detail; a short table lists all that passed."""
    within = (limit("macs", 2_000_000_000 + number) for number in range(others))
    record = one_model(*within, limit("params", 10_000_000, Level.WARN))
    shown = text(record, Detail.TIGHTEST)
    if others == 14:
        assert len(shown) == 1 + 15
    else:
        assert [line.split()[0] for line in shown[1:-1]] == ["warn"]
        assert shown[-1] == "15 more limits passed (-v lists them)"
    assert counted(record) == f"{others + 1} limits: 0 over, 1 warn, {others} within, 0 unknown"


def test_layers_are_the_largest_shares_first() -> None:
    """With -vv each limit is followed by who its number is made of."""
    shown = text(one_model(limit("macs", 2_000_000_000)), Detail.LAYERS)
    assert shown[3:5] == ["             1.00 GMAC   55.1%  fc", "              814 MMAC   44.9%  layer1"]


def test_only_the_verdict_and_the_excess_are_coloured() -> None:
    """Of what is over; of what is within the verdict."""
    shown = list(lines(one_model(limit("macs", 1_820_000_000), limit("params", 11_000_000)), Detail.TIGHTEST))
    over, within = ([piece for piece in line.pieces if piece[1]] for line in shown[1:3])
    assert over == [("over    ", "over"), ("6.3% over", "over")]
    assert within == [("within  ", "within")]


def test_figures_that_round_alike_have_more_digits() -> None:
    """One parameter too many is seen."""
    shown = text(one_model(limit("params", 11_689_511)), Detail.TIGHTEST)
    assert "11,689,512 11,689,511" in shown[1]
    assert shown[1].endswith("<0.1% over")


@pytest.mark.parametrize(
    ("check", "room"),
    [
        pytest.param({"actual": 90, "limit": 100}, Fraction(10, 100), id="maximum"),
        pytest.param({"actual": 110, "limit": 100}, Fraction(-10, 100), id="over"),
        pytest.param({"actual": "1.5", "limit": None, "min": 1}, Fraction(1, 2), id="minimum"),
        pytest.param({"actual": 12, "limit": 16, "min": 10}, Fraction(2, 10), id="nearer end"),
        pytest.param({"actual": 3, "limit": 0}, None, id="of nothing"),
        pytest.param({"actual": None, "limit": 9}, None, id="unmeasured"),
        pytest.param({"actual": 8, "limit": 9, "outcome": "unknown"}, None, id="unknown"),
    ],
)
def test_headroom_is_a_share_of_the_nearer_bound(check: records.Record, room: Fraction | None) -> None:
    """How much of the limit is left, negative when over."""
    judged = {"id": "id", "metric": "macs", "outcome": "within", **check}
    assert from_json(Check, judged).headroom == room


def unknown(metric: str, measurement: Measurement, most: int) -> list[str]:
    """The row of a limit that an op without a formula leaves unknown, from its second word on."""
    model = MeasuredModel("torch", "meta", measurements={metric: measurement})
    check = check_report(f"{FILE}::net::{metric}", judge(limit(metric, most), measurement), metric_table())
    record = replace(model_report(f"{FILE}::net", Place(FILE, 3), model), checks=(check,))
    return text(report(record), Detail.TIGHTEST)[1].split()[2:]


def test_what_is_unknown_looks_like_nothing_measured() -> None:
    """A lower bound is marked, a ratio is not even that, and neither has headroom."""
    missing = (UnmeasuredOp("aten::foo", 1, "", "no rule"),)
    macs = Measurement(256, "MAC", shares=(Share("", 256),), unmeasured=missing)
    assert unknown("macs", macs, 256) == [">=", "256", "MAC", "256", "MAC", "?"]
    ratio = Measurement(Fraction(3, 2), "FLOP/B", unmeasured=missing, unreduced=(6, 4))
    assert unknown("arithmetic_intensity", ratio, 2) == ["?", "2.000", "FLOP/B", "?"]


def test_broken_files_are_counted_in_plural() -> None:
    """One broken file, two broken files."""
    broken = tuple(BrokenFile(id=f"budgets/{name}.yaml::budget", problems=("x",)) for name in "ab")
    said = [counted(report(broken=files)) for files in (broken[:1], broken)]
    none = "0 limits: 0 over, 0 warn, 0 within, 0 unknown"
    assert said == [f"{none}, 1 broken file", f"{none}, 2 broken files"]


def test_a_session_without_limits_is_counted_too() -> None:
    """Zero is said, not left out."""
    assert counted(report()) == "0 limits: 0 over, 0 warn, 0 within, 0 unknown"


def test_a_scopes_limit_shows_the_layers_of_the_scope() -> None:
    """Shares outside it are not part of its number."""
    scoped = Limit("macs", Place(FILE, 1), max=2 * 10**9, scope="layer*")
    shown = text(one_model(scoped), Detail.LAYERS)
    assert shown[3:] == ["              814 MMAC  100.0%  layer1"]


def test_a_transform_has_rows_of_its_own() -> None:
    """Its limits and its claim, which shows how far outputs differ and what is allowed."""
    shown = text(records.report(records.transformed()), Detail.TIGHTEST)
    assert [line.split()[:4] for line in shown[1:]] == [
        ["within", "net::params", "40", "50"],
        ["over", "net::tiled::equivalence", "3.2e-04", "1e-10"],
        ["over", "net::tiled::macs", "125", "MAC"],
    ]


def test_growth_is_told_above_the_layers() -> None:
    """With -vv: who grew, with shapes, then who the number is made of."""
    shown = text(records.report(records.grown()), Detail.LAYERS)
    assert shown[3] == "        +224,000  classifier.1.weight   [1000, 1280] -> [1175, 1280]"
    assert max(map(len, shown)) < 80


def test_a_line_gives_up_its_padding_before_its_name() -> None:
    """Dots come only where a line is too wide without the space between its columns."""
    padded = f"+6,144  encoder.layers.0.linear1.weight{' ' * 30}[192, 64] -> [192, 96]"
    assert cut_middle(padded, 79) == "+6,144  encoder.layers.0.linear1.weight  [192, 64] -> [192, 96]"


def test_what_growth_allows_is_a_maximum_too() -> None:
    """The lower of limit and allowed growth is what change and bar are of: 48 of 50 and 60."""
    record = records.report(records.model(records.check(actual=48, limit=60, allowed=50, baseline=48)))
    assert text(record, Detail.ALL)[2].split()[2:] == ["48", "50", "4.0%", "left", "[#########.]"]


@pytest.mark.parametrize(
    ("check", "change"),
    [
        pytest.param({"actual": 54, "limit": 50, "baseline": 48}, "+12.5% vs base", id="grown"),
        pytest.param({"actual": 45, "limit": 50, "baseline": 48}, "-6.3% vs base", id="fallen"),
        pytest.param({"actual": 45, "limit": 40, "baseline": 48}, "12.5% over", id="fallen, and over another limit"),
        pytest.param({"actual": 48, "limit": 40, "baseline": 48}, "20.0% over", id="as it was"),
        pytest.param({"actual": 40, "limit": None, "min": 50, "baseline": 48}, "-16.7% vs base", id="fallen short"),
        pytest.param({"actual": 40, "limit": None, "min": 50}, "20.0% short", id="short"),
        pytest.param({"actual": 40, "limit": 50}, "20.0% left", id="without a base"),
    ],
)
def test_a_row_has_one_percentage(check: records.Record, change: str) -> None:
    """The growth since the base, else the distance from the limit."""
    is_kept = check["actual"] <= (check["limit"] or check["actual"]) and check["actual"] >= check.get("min", 0)
    judged = {"id": "id", "metric": "macs", "outcome": "within" if is_kept else "over", **check}
    assert from_json(Check, judged).change_text == change


OTHER_WEIGHTS = "precision only: the second model stores other weights than the first"
SMALLER = "inputs of scale 0.1 and 0.1 (large): the original overflows on larger ones"


@pytest.mark.parametrize(
    ("claim", "below"),
    [
        pytest.param(records.claimed("whole network"), [], id="all of it"),
        pytest.param(records.claimed("declared bounds"), [], id="declared"),
        pytest.param(records.claimed("precision only"), ["precision only"], id="step 2 alone"),
        pytest.param(records.claimed("precision only", OTHER_WEIGHTS), [OTHER_WEIGHTS], id="why"),
        pytest.param(
            records.claimed("layers only", "layers only: no\nkernel", "b"),
            ["layers only: no kernel", "b"],
            id="one line each",
        ),
        pytest.param(
            records.claimed("whole network", SMALLER),
            ["inputs of scale 0.1 and 0.1 (large): the original overflows on larger", "  ones"],
            id="E12: wrapped",
        ),
        pytest.param(records.claimed("precision only", "a", outcome="over"), [], id="a failure"),
    ],
)
def test_a_green_claim_says_what_it_rests_on(claim: records.Record, below: list[str]) -> None:
    """A claim held by less than all runs of the network says so below its row, in 80 columns."""
    for detail in Detail:
        shown = text(records.report(claim), detail)
        place = next(i for i, line in enumerate(shown) if "127.2 dB" in line)
        assert shown[place + 1 :] == [" " * 8 + line for line in below]
        assert max(map(len, shown)) < 80


@pytest.mark.parametrize("detail", list(Detail))
def test_a_note_that_asks_for_nothing_is_shown_with_vv(detail: Detail) -> None:
    """The other note always is."""
    record = one_model(limit("macs", 2_000_000_000))
    notes = ("QDQ: 3 operations are read on integers; 'qdq: as_written' measures the floating ones", "of one input")
    record = replace(record, models=(replace(record.models[0], notes=notes),))
    shown = " ".join(" ".join(text(record, detail)).split())
    assert "of one input" in shown
    assert ("QDQ: 3 operations" in shown) is (detail is Detail.LAYERS)
