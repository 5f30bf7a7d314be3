from io import StringIO

from chopperd.cli.output import reading_progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_is_for_terminals_only() -> None:
    stream = StringIO()
    with reading_progress(stream) as progress:
        assert progress is None
    assert stream.getvalue() == ""


def test_a_terminal_sees_how_far_reading_has_come() -> None:
    stream = Terminal()
    with reading_progress(stream) as progress:
        assert progress is not None
        progress(5, 10)
    assert "reading" in stream.getvalue()
    assert "50%" in stream.getvalue()
