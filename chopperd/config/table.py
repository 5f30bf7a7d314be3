"""The one table of all keys: type, allowed values, default and help."""

from dataclasses import dataclass
from typing import Final

from chopperd.config.kinds import (
    CLASS_RULES,
    DEVICE_MAPS,
    FLAG,
    FOLDER,
    LISTEN,
    NAME,
    PATTERNS,
    Kind,
    choice,
    listed,
    number,
    per_model,
    size,
    whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of the configuration; `default` None means "not set"."""

    key: str
    kind: Kind
    default: object
    help: str


_RATE: Final = number(0.1, 1000, "Hz")
_BUDGET: Final = number(0.0001, 0.5)
_CLOCK: Final = number(100, 10_000, "MHz")
_SIZE: Final = size(1024, 2**42)
_DAYS: Final = number(0.01, 3650, "days")
_MIB: Final = 2**20
_GIB: Final = 2**30

SETTINGS: Final = tuple(
    Setting(key=key, kind=kind, default=default, help=help_text)
    for key, kind, default, help_text in (
        ("node.name", NAME, None, "name of this node; default: its host name"),
        ("paths.state", FOLDER, None, "inbox, store, recorder; /var/lib/chopperd if writable"),
        ("paths.runtime", FOLDER, None, "socket and pause file; /run/chopperd if writable"),
        ("sampling.backend", NAME, "auto", "driver to read GPUs through; auto: one that works"),
        ("sampling.hz", _RATE, 10.0, "reads of clock and limits a second"),
        ("sampling.slow_hz", number(0.1, 10, "Hz"), 1.0, "reads of everything else a second"),
        ("sampling.record_hz", _RATE, 100.0, "reads a second under `chopperd record`"),
        ("sampling.record_slow_hz", _RATE, 10.0, "reads of everything else a second under it"),
        ("sampling.driver_budget_ratio", _BUDGET, 0.002, "most time in driver calls, per GPU"),
        ("sampling.record_driver_budget_ratio", _BUDGET, 0.02, "the same under `record`"),
        ("sampling.idle_hz", _RATE, 1.0, "reads a second of a GPU that is idle for 10 s"),
        ("sampling.record_idle_hz", _RATE, None, "the same under `record`; default: as if busy"),
        ("sampling.burst_hz", _RATE, 100.0, "reads a second while a trace is captured"),
        ("sampling.burst_max_s", number(1, 60, "s"), 60.0, "longest time at that rate"),
        ("sampling.burst_driver_budget_ratio", _BUDGET, 0.02, "most time in calls at that rate"),
        (
            "sampling.self_test_ratio",
            number(0, 0.1),
            0.02,
            "share of time without sampling, to measure its cost by marked steps; 0: never",
        ),
        ("ingest.max_stored_bytes", _SIZE, 8 * _GIB, "largest trace file, as stored"),
        ("ingest.max_decompressed_bytes", _SIZE, 32 * _GIB, "largest trace, decompressed"),
        ("ingest.roots", listed(FOLDER), [], "folders of files for POST /traces?path="),
        (
            "ingest.settle_s",
            number(0.1, 3600, "s"),
            2.0,
            "a file is read when unchanged so long",
        ),
        ("ingest.keep_failed", whole(0, 1000), 5, "newest rejected traces to retain, with reason"),
        ("analysis.mode", choice("here", "off", "spool"), "here", "what is done with traces"),
        ("analysis.memory_max_bytes", size(64 * _MIB, 2**42), _GIB, "most memory of the worker"),
        ("analysis.timeout_s", number(1, 86_400, "s"), 900.0, "longest time for one trace"),
        ("analysis.idle_s", number(0, 3600, "s"), 30.0, "idle time after which the worker ends"),
        ("analysis.keep_traces", FLAG, False, "retain traces after their analysis"),
        ("analysis.spool_max_bytes", _SIZE, 2 * _GIB, "most disk for pending and retained traces"),
        ("store.max_bytes", size(_MIB, 2**42), 512 * _MIB, "most disk for steps and reports"),
        ("store.max_days", _DAYS, 14.0, "how long steps and reports are stored"),
        ("store.min_free_ratio", number(0, 0.5), 0.05, "share of the disk that must stay free"),
        ("recorder.max_bytes", size(_MIB, 2**42), 512 * _MIB, "most disk for samples"),
        ("recorder.max_days", _DAYS, 7.0, "how long samples are stored"),
        ("metrics.listen", LISTEN, "127.0.0.1:9469", "where Prometheus scrapes /metrics"),
        ("metrics.profile", choice("minimal", "standard", "full"), "standard", "which metrics"),
        ("api.listen", LISTEN, "127.0.0.1:9470", "address of the API, next to its socket"),
        ("api.admin_group", NAME, "chopperd", "group that may see all jobs, pause and upload"),
        ("api.token_file", FOLDER, None, "file with a token that makes its bearer an admin"),
        ("api.allowed_hosts", listed(NAME), [], "host names to answer to, besides localhost"),
        ("api.insecure", FLAG, False, "let the API listen beyond loopback without TLS"),
        ("health.fail_on_lost_driver", FLAG, False, "unhealthy when a driver stays lost"),
        (
            "traces.device_map",
            DEVICE_MAPS,
            None,
            "GPU of each device in traces: [RANK:]DEVICE=GPU,... or pci",
        ),
        ("traces.data_wait_patterns", PATTERNS, [], "more spans that wait for data"),
        ("traces.classes", CLASS_RULES, [], "classes of own kernels, before the built-in ones"),
        ("reference.sm_clock_mhz", _CLOCK, None, "reference clock of every GPU"),
        ("reference.limit_mhz", _CLOCK, None, "clock that the GPUs are locked or limited to"),
        ("reference.models", per_model(_CLOCK), {}, "reference clock by product name"),
        ("privacy.names", choice("full", "hashed", "classes"), "full", "names in what is shown"),
    )
)
