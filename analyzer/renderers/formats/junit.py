"""A comparison as JUnit's XML, for what shows tests: a gate, or the verdict, is one test case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from kanalyze import outlets
from kanalyze.renderers.page.comparison import answer

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison

#: What a verdict is as a test, where no gate was asked for.
_STATES: Final = {"faster": "held", "same": "held", "slower": "failed", "cannot tell": "cannot judge"}


def render(found: Comparison) -> str:
    """Renders a comparison as one test suite with one test case: failed where new is slower, or as the gate says."""
    gate, verdict = found.gate, found.verdict
    state = gate.state if gate is not None else _STATES[verdict.word]
    failed, skipped = state == "failed", state == "cannot judge"
    counts = {"tests": "1", "failures": str(int(failed)), "skipped": str(int(skipped)), "errors": "0"}
    suite = ET.Element("testsuite", {"name": "kanalyze compare", **counts})
    metric = gate.metric if gate is not None else found.each
    case = ET.SubElement(suite, "testcase", classname="kanalyze.compare", name=outlets.line(metric))
    text = outlets.line(gate.sentence if gate is not None else answer(found))
    if failed or skipped:
        ET.SubElement(case, "failure" if failed else "skipped", message=text)
    ET.SubElement(case, "system-out").text = outlets.line(answer(found))
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'
