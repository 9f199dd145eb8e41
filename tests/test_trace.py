"""The picture of a trace is to scale, and says what it shows."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from allreduce_edu.show.trace import Trace


class Span(NamedTuple):
    what: str
    start: float
    stop: float


SPANS = [
    Span("compute", 0.0, 0.010),
    Span("all-reduce", 0.005, 0.020),
    Span("compute", 0.012, 0.020),
    Span("all-reduce", 0.020, 0.040),
]
TRACE = Trace([SPANS, [Span("compute", 0.0, 0.030)]])


def bars(trace, look):
    """Return where the bars of a look begin and how wide they are."""
    found = re.findall(
        rf'<rect class="ar-{look}"[^>]* x="([\d.]+)"[^>]* width="([\d.]+)"', trace.svg()
    )
    return [(float(x), float(wide)) for x, wide in found]


def test_bars_are_to_scale():
    first, second = [bar for bar in bars(TRACE, "r0") if bar[0] > 100]
    early, late = bars(TRACE, "done")
    per_ms = first[1] / 10
    assert second == pytest.approx((first[0] + 12 * per_ms, 8 * per_ms), abs=0.2)
    assert early == pytest.approx((first[0] + 5 * per_ms, 15 * per_ms), abs=0.2)
    assert late == pytest.approx((first[0] + 20 * per_ms, 20 * per_ms), abs=0.2)


def test_it_says_what_it_shows():
    assert TRACE.alt == (
        "One backward to scale, 2 ranks. Rank 0: computing until 20.0 ms; an all-reduce from "
        "5.0 ms to 20.0 ms; an all-reduce from 20.0 ms to 40.0 ms. Rank 1: computing until "
        "30.0 ms; no all-reduce."
    )
    assert repr(TRACE).endswith("computing and an all-reduce overlap on 1")
    assert 'alt="One backward to scale, 2 ranks. Rank 0' in TRACE._repr_mimebundle_()["text/html"]


def test_what_sticks_out_is_what_comes_after_the_computing():
    assert TRACE.exposed(0) == pytest.approx(0.020)
    assert TRACE.exposed(1) == 0


def test_it_is_one_well_formed_text():
    root = ET.fromstring(TRACE.svg())
    width = float(root.get("width"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 < float(rect.get("x")) <= float(rect.get("x")) + float(rect.get("width")) <= width
    assert TRACE.svg() == Trace([SPANS, [Span("compute", 0.0, 0.030)]]).svg()


@pytest.mark.parametrize("spans", [[[]], [[Span("all-reduce", 0, 1)]]])
def test_a_trace_without_computing_cannot_be_drawn(spans):
    with pytest.raises(ValueError, match='"compute" for each rank'):
        Trace(spans)
