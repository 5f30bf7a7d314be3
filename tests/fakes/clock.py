"""A clock that stands still until a test moves it."""

from chopperd.units import NS_PER_S, TimeTriple


class ScriptedClock:
    """All three system clocks advance together, by `advance` and by sleeping only."""

    def __init__(self, *, mono_ns: int = NS_PER_S, unix_ns: int = 1_800_000_000 * NS_PER_S) -> None:
        self._mono_ns = mono_ns
        self._unix_offset_ns = unix_ns - mono_ns

    def advance(self, ns: int) -> None:
        self._mono_ns += ns

    def mono_ns(self) -> int:
        return self._mono_ns

    def unix_ns(self) -> int:
        return self._mono_ns + self._unix_offset_ns

    def triple(self) -> TimeTriple:
        return TimeTriple(unix_ns=self.unix_ns(), mono_ns=self._mono_ns, boot_ns=self._mono_ns)

    def sleep_until(self, deadline_mono_ns: int) -> None:
        self._mono_ns = max(self._mono_ns, deadline_mono_ns)
