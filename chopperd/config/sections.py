"""The configuration as the program uses it: one dataclass a section."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """`[node]`: what this node is called; None takes the host's name, in a pod the pod's."""

    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsConfig:
    """`[paths]`: where state and sockets are; None takes the system's place, or the user's."""

    state: str | None
    runtime: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """`[sampling]`: how often the GPUs are read, and what the reading may cost."""

    backend: str
    hz: float
    slow_hz: float
    record_hz: float
    record_slow_hz: float
    driver_budget_ratio: float
    record_driver_budget_ratio: float
    idle_hz: float
    record_idle_hz: float | None
    burst_hz: float
    burst_max_s: float
    burst_driver_budget_ratio: float
    self_test_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    """`[ingest]`: which traces are taken in, and how large they may be."""

    max_stored_bytes: int
    max_decompressed_bytes: int
    roots: tuple[str, ...]
    settle_s: float
    keep_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisConfig:
    """`[analysis]`: whether traces are analysed on this node, and what that may cost."""

    mode: Literal["here", "off", "spool"]
    memory_max_bytes: int
    timeout_s: float
    idle_s: float
    keep_traces: bool
    spool_max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`[store]`: how much of steps and reports is kept, and how much disk is left to others."""

    max_bytes: int
    max_days: float
    min_free_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderConfig:
    """`[recorder]`: how many samples the flight recorder keeps."""

    max_bytes: int
    max_days: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """`[metrics]`: where Prometheus scrapes, and how much."""

    listen: str
    profile: Literal["minimal", "standard", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """`[api]`: who may ask the agent, and where."""

    listen: str
    admin_group: str
    token_file: str | None
    allowed_hosts: tuple[str, ...]
    insecure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """`[health]`: what makes the agent itself unhealthy."""

    fail_on_lost_driver: bool


class ClassSetting(msgspec.Struct, frozen=True, kw_only=True, rename={"kernel_class": "class"}):
    """A rule of `traces.classes`: the class of the kernels in whose name a pattern is found."""

    kernel_class: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesConfig:
    """`[traces]`: what a site knows about its own traces."""

    device_map: str | None
    data_wait_patterns: tuple[str, ...]
    classes: tuple[ClassSetting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    """`[reference]`: the clock that losses are measured against, where the driver's is not it.

    A model's own goes before the one for all.
    """

    sm_clock_mhz: float | None
    limit_mhz: float | None
    models: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """`[privacy]`: what may be shown; names of kernels and modules reveal architectures."""

    names: Literal["full", "hashed", "classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration; `origins` says for each key ("sampling.hz") where it was set."""

    node: NodeConfig
    paths: PathsConfig
    sampling: SamplingConfig
    ingest: IngestConfig
    analysis: AnalysisConfig
    store: StoreConfig
    recorder: RecorderConfig
    metrics: MetricsConfig
    api: ApiConfig
    health: HealthConfig
    traces: TracesConfig
    reference: ReferenceConfig
    privacy: PrivacyConfig
    origins: Mapping[str, str]
