import json

import numpy as np

from chopperd.simulation.template import Count, Moment, Row, TemplateBuilder


def test_a_template_fills_its_holes_anew_for_each_step() -> None:
    builder = TemplateBuilder()
    row, external = Row(pid=7, tid=8), builder.new_id()
    name = 'a "50 %" name'
    span = Moment(0, -1_500), Moment(1, 2)
    builder.complete("kernel", name, row, span, {"External id": external, "grid": [1, 2, 3]})
    builder.complete("user_annotation", "ProfilerStep#", row, span, {}, numbered=True)
    builder.flow("s", row, Moment(1, 0), external)
    template = builder.build()
    times = np.array([1_000_002_000, 1_000_005_001])
    text = template.fill(times, base_ns=1_000_000_000, first_id=40, step=3)
    kernel, mark, flow = json.loads(f"[{text}]")
    # by hand: from 2000 - 1500 = 500 ns to 5003 ns after the base, in microseconds
    assert kernel == {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 7,
        "tid": 8,
        "ts": 0.5,
        "dur": 4.503,
        "args": {"External id": 40, "grid": [1, 2, 3]},
    }
    assert mark["name"] == "ProfilerStep#3"
    assert (flow["ph"], flow["id"], flow["ts"]) == ("s", 40, 5.001)
    assert template.fill(times, base_ns=1_000_000_000, first_id=90, step=3) != text


def test_a_count_goes_on_from_step_to_step() -> None:
    builder = TemplateBuilder()
    row, span = Row(pid=7, tid=8), (Moment(0, 0), Moment(0, 1))
    builder.complete("kernel", "a", row, span, {"id": builder.new_id(), "Seq": Count(0, 2)})
    builder.complete("kernel", "b", row, span, {"Seq": Count(1, 2)})
    template, times = builder.build(), np.array([5_000])
    found = [
        [each["args"]["Seq"] for each in json.loads(f"[{text}]")]
        for text in (template.fill(times, base_ns=0, first_id=9, step=step) for step in (0, 1, 4))
    ]
    assert found == [[0, 1], [2, 3], [8, 9]]
