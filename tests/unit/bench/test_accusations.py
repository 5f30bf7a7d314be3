"""The study of accusations: a slow GPU is blamed by the finding that its drivers' reasons allow."""

from bench.accusations import Node, found_on


def test_a_gpu_that_is_6_percent_slower_is_blamed_though_no_limit_is_reported() -> None:
    # known truth: all clocks move alike, the first is slower, and no limit is in force
    node = Node(
        preset="steady", step_s=1.0, steps=10, hz=10.0, slower=0.06, together=True, reasons=False
    )
    found = found_on(node, 1)
    assert found.straggler
    assert (found.blamed, found.wronged) == (("clock.unexplained_low",), ())
