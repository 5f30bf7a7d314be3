"""The one table of keys: type, allowed values, default and help."""

from dataclasses import dataclass
from typing import Final

from chopperd.config.kinds import (
    Choice,
    ClassRules,
    DeviceMaps,
    Flag,
    Folder,
    Kind,
    Listed,
    Listen,
    Name,
    Number,
    Patterns,
    PerModel,
    Size,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of the configuration; `default` None is "not set"."""

    key: str
    kind: Kind
    default: object
    help: str


_RATE: Final = Number(0.1, 1000, "Hz")
_BUDGET: Final = Number(0.0001, 0.5)
_CLOCK: Final = Number(100, 10_000, "MHz")
_SIZE: Final = Size(1024, 2**42)
_DAYS: Final = Number(0.01, 3650, "days")
_MIB: Final = 2**20
_GIB: Final = 2**30

SETTINGS: Final = tuple(
    Setting(key=key, kind=kind, default=default, help=help_text)
    for key, kind, default, help_text in (
        ("node.name", Name(), None, "what this node is called; its host name if not set"),
        (
            "paths.state",
            Folder(),
            None,
            "inbox, store and recorder; /var/lib/chopperd if it may be",
        ),
        ("paths.runtime", Folder(), None, "socket and pause file; /run/chopperd if it may be"),
        ("sampling.backend", Name(), "auto", "driver to read GPUs through; auto takes what works"),
        ("sampling.hz", _RATE, 10.0, "reads of clock and limits a second"),
        ("sampling.slow_hz", Number(0.1, 10, "Hz"), 1.0, "reads of everything else a second"),
        ("sampling.record_hz", _RATE, 100.0, "reads a second under `chopperd record`"),
        ("sampling.record_slow_hz", _RATE, 10.0, "reads of everything else a second under it"),
        ("sampling.driver_budget_ratio", _BUDGET, 0.002, "share of time in driver calls, a GPU"),
        ("sampling.record_driver_budget_ratio", _BUDGET, 0.02, "the same under `record`"),
        ("sampling.idle_hz", _RATE, 1.0, "reads a second of a GPU that is idle for 10 s"),
        ("sampling.record_idle_hz", _RATE, None, "the same under `record`; as if busy if not set"),
        ("sampling.burst_hz", _RATE, 100.0, "reads a second while a trace is captured"),
        ("sampling.burst_max_s", Number(1, 60, "s"), 60.0, "longest time at that rate"),
        ("sampling.burst_driver_budget_ratio", _BUDGET, 0.02, "share of time in calls at it"),
        (
            "sampling.self_test_ratio",
            Number(0, 0.1),
            0.02,
            "share of time without sampling, to tell from marked steps what it costs; 0: never",
        ),
        ("ingest.max_stored_bytes", _SIZE, 8 * _GIB, "largest trace file, as stored"),
        ("ingest.max_decompressed_bytes", _SIZE, 32 * _GIB, "largest trace, decompressed"),
        ("ingest.roots", Listed(Folder()), [], "folders that POST /traces?path= may name files of"),
        ("ingest.settle_s", Number(0.1, 3600, "s"), 2.0, "a file unchanged for so long is taken"),
        ("ingest.keep_failed", Whole(0, 1000), 5, "newest refused traces to keep, with the reason"),
        ("analysis.mode", Choice(("here", "off", "spool")), "here", "what is done with traces"),
        ("analysis.memory_max_bytes", Size(64 * _MIB, 2**42), _GIB, "most memory of the worker"),
        ("analysis.timeout_s", Number(1, 86_400, "s"), 900.0, "longest time for one trace"),
        ("analysis.idle_s", Number(0, 3600, "s"), 30.0, "the worker ends when idle for so long"),
        ("analysis.keep_traces", Flag(), False, "keep traces that were analysed"),
        ("analysis.spool_max_bytes", _SIZE, 2 * _GIB, "most disk for traces that wait or are kept"),
        ("store.max_bytes", Size(_MIB, 2**42), 512 * _MIB, "most disk for steps and reports"),
        ("store.max_days", _DAYS, 14.0, "how long steps and reports are kept"),
        ("store.min_free_ratio", Number(0, 0.5), 0.05, "share of the disk that is left free"),
        ("recorder.max_bytes", Size(_MIB, 2**42), 512 * _MIB, "most disk for samples"),
        ("recorder.max_days", _DAYS, 7.0, "how long samples are kept"),
        ("metrics.listen", Listen(), "127.0.0.1:9469", "where Prometheus scrapes /metrics"),
        ("metrics.profile", Choice(("minimal", "standard", "full")), "standard", "which metrics"),
        ("api.listen", Listen(), "127.0.0.1:9470", "where the API answers, beside its socket"),
        ("api.admin_group", Name(), "chopperd", "group that may see all jobs, pause and upload"),
        ("api.token_file", Folder(), None, "file with a token that makes its bearer an admin"),
        ("api.allowed_hosts", Listed(Name()), [], "host names beside localhost to answer to"),
        ("api.insecure", Flag(), False, "let the API listen beyond loopback without TLS"),
        ("health.fail_on_lost_driver", Flag(), False, "unhealthy when a driver stays lost"),
        (
            "traces.device_map",
            DeviceMaps(),
            None,
            "which GPU each device of a trace is: [RANK:]DEVICE=GPU,... or pci",
        ),
        (
            "traces.data_wait_patterns",
            Patterns(),
            [],
            "spans that wait for data, besides known ones",
        ),
        ("traces.classes", ClassRules(), [], "classes of own kernels, tried before the built-in"),
        ("reference.sm_clock_mhz", _CLOCK, None, "reference clock of every GPU"),
        ("reference.limit_mhz", _CLOCK, None, "clock that the GPUs are locked or limited to"),
        ("reference.models", PerModel(_CLOCK), {}, "reference clock by product name"),
        ("privacy.names", Choice(("full", "hashed", "classes")), "full", "names in what is shown"),
    )
)
