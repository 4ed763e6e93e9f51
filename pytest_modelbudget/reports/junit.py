"""``--model-budget-report=junit``: one suite a budget file, one case a limit, for dashboards.

Written for what dashboards read (docs/reports.md has the list): names that are unique, file and line on
the case, a one-line message, everything else as text, the figures as properties and in system-out.

<testcase classname="budgets.vision.mobilenet_v2" name="mobilenet_v2 / params" file="budgets/vision.yaml" line="8">
  <properties><property name="actual" value="3729047"/>...</properties>
  <failure type="over" message="mobilenet_v2: params 3.73 M &gt; 3.51 M ...">...</failure>
  <system-out>measured  3,729,047...</system-out>
</testcase>
"""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple
from xml.etree import ElementTree

from junit_xml import TestCase, TestSuite, to_xml_report_string

from pytest_modelbudget.budget.budget import Address
from pytest_modelbudget.reports.findings import CHANGES, ERROR, QUIET, Finding, findings
from pytest_modelbudget.reports.json_records import to_json
from pytest_modelbudget.reports.messages import detail_lines, grown_name
from pytest_modelbudget.reports.record import LOCK, BrokenFile, Case, LockReport, LoosenedLimit, RedefinedModel, Report
from pytest_modelbudget.reports.text import one_line, printable

SUITES = "model budget"
UNANSWERED = "unanswered"
NO_TIME = "0.000"
FIGURES = ("metric", "unit", "actual", "measured", "limit", "min", "least", "most", "baseline", "allowed", "grow",
           "floor", "outcome", "level")  # fmt: skip


class Reported(NamedTuple):
    """One test case before it is XML: an id of its own, what it is a part of, and the kind of what fails it, or ""."""

    id: str
    above: Address
    name: str
    line: int
    message: str
    text: str
    properties: Mapping[str, str] = {}
    seconds: str = NO_TIME
    problem: str = ""

    @property
    def classname(self) -> str:
        """Of budgets/vision.yaml::net::batch8 it is budgets.vision.net.batch8."""
        file = posixpath.splitext(self.above.file)[0].replace("/", ".")
        return ".".join([file, *self.above.names]) or SUITES


def render(report: Report) -> str:
    """The report as XML, one suite after the other in the order of their files."""
    by_file: dict[str, list[Reported]] = {}
    reported = list(_reported(report))
    names = Counter((case.classname, case.name) for case in reported)
    for case in reported:  # where ids give the same class and name, the whole id is the name: names are unique
        is_unique = names[case.classname, case.name] == 1
        by_file.setdefault(case.above.file, []).append(case if is_unique else case._replace(name=case.id))
    about = {**report.environment, "selected": str(report.selected).lower()}
    properties = {name: printable(value) for name, value in about.items()}
    suites = [
        TestSuite(printable(file) or SUITES, [_test_case(case) for case in some], properties=properties)
        for file, some in by_file.items()
    ]
    tree = ElementTree.fromstring(to_xml_report_string(suites, prettyprint=False))
    _complete(tree, chain.from_iterable(by_file.values()))
    ElementTree.indent(tree)
    return ElementTree.tostring(tree, encoding="unicode", xml_declaration=True) + "\n"


def _reported(report: Report) -> Iterator[Reported]:
    """Every limit, the time of each model and transform on its first; one case a broken file; whatever else fails."""
    timings, broken = dict(report.timings), set()
    for finding in findings(report):
        source, (first, *_) = finding.source, finding.lines
        if isinstance(source, Case):
            ids = (source.model.id, str(source.address.above), source.id)
            taken = [timings.pop(each) for each in ids if each in timings]
            yield _of_case(source, finding, f"{sum(map(float, taken)):.3f}" if taken else NO_TIME)
        elif isinstance(source, BrokenFile):
            if source.id not in broken:  # on the line of its first problem, with every one of them
                who = source.id, source.address.above, source.address.name, finding.line
                problems = one_line(source.problems[0]), "\n".join(source.problems)
                yield Reported(*who, *problems, problem="broken")
            broken.add(source.id)
        elif isinstance(source, (LoosenedLimit, RedefinedModel)):
            yield _of_change(source, finding)
        elif isinstance(source, LockReport) and finding.level != QUIET:
            above = Address(Address.parse(source.id).file)
            yield Reported(f"{above.file} {first}", above, LOCK, 1, first, first, problem=LOCK)
        elif finding.level != QUIET:
            yield Reported(SUITES, Address(""), UNANSWERED, 1, first, first, problem=UNANSWERED)


def _of_case(case: Case, finding: Finding, seconds: str) -> Reported:
    properties = _properties(to_json(case.check), FIGURES)
    if left := case.check.change_text:
        properties["change"] = left
    for number, entry in enumerate(case.check.blame, 1):
        properties[f"blame.{number}"] = f"{entry.delta:+d} {grown_name(entry)}"
    if waiver := case.check.waiver:
        given = _properties(to_json(waiver), ("to", "until", "reason", "by", "today"))
        properties |= {f"waiver.{key}": value for key, value in given.items()}
    text = "\n".join([f"{finding.lines[0]}   {case.place}", *detail_lines(case)])
    problem = case.outcome if finding.level == ERROR else ""
    who = case.id, case.address.above, finding.title, case.line
    return Reported(*who, finding.message, text, properties, seconds, problem)


def _properties(json: Mapping[str, object], keys: Iterable[str]) -> dict[str, str]:
    """The values that are known, as the JSON report spells them."""
    return {key: str(json[key]) for key in keys if json.get(key) is not None}


def _of_change(change: LoosenedLimit | RedefinedModel, finding: Finding) -> Reported:
    """A limit that lets pass more than it did, or a model that is another one; it fails where that is forbidden."""
    first, *below = finding.lines
    is_of_limit = isinstance(change, LoosenedLimit) and change.metric is not None
    above = change.address.above if is_of_limit else change.address
    name = f"{change.address.title} {finding.kind}: {change.what}".lstrip()
    text = "\n".join((f"{first}   {change.file}:{change.line}", *below))
    properties = _properties(to_json(change), ("metric", "what", "before", "after"))
    problem = finding.kind if change.forbidden else ""
    who = f"{change.id} {first}", above, name, change.line
    return Reported(*who, finding.message, text, properties, problem=problem)


# Into XML.


def _test_case(case: Reported) -> TestCase:
    """A limit that is over fails; what could not be judged is an error, as JUnit means it."""
    file, text = printable(case.above.file), printable(case.text)
    test_case = TestCase(
        printable(case.name), printable(case.classname), file=file or None, line=str(case.line) if file else None,
        stdout=text,
    )  # fmt: skip
    problem = {"message": printable(case.message), "output": text}
    if case.problem in ("over", "unused", *CHANGES, LOCK):
        test_case.add_failure_info(failure_type=case.problem, **problem)
    elif case.problem:
        test_case.add_error_info(error_type=case.problem, **problem)
    return test_case


def _complete(tree: ElementTree.Element, reported: Iterable[Reported]) -> None:
    """Add what junit-xml leaves out: properties of a case, and a time that is zero.

    Its attribute "disabled" goes: no consumer reads it, and Jenkins' schema refuses it.
    """
    for element, case in zip(tree.iter("testcase"), reported, strict=True):
        element.set("time", case.seconds)
        if case.properties:
            properties = ElementTree.Element("properties")
            for name, value in case.properties.items():
                ElementTree.SubElement(properties, "property", name=name, value=printable(one_line(value)))
            element.insert(0, properties)
    for suite in (*tree.iter("testsuite"), tree):
        suite.attrib.pop("disabled", None)
        seconds = (float(inside.get("time", "0")) for inside in suite.iter("testcase"))
        suite.set("time", f"{sum(seconds):.3f}")
    tree.set("name", SUITES)
    for count in ("tests", "failures", "errors"):
        tree.attrib.setdefault(count, "0")  # junit-xml counts no suites as nothing at all
