"""The parsed configuration: one dataclass for each section."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """`[node]`: name of this node; None for the host's name, in a pod the pod's."""

    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsConfig:
    """`[paths]`: folders of state and sockets; None for the system's, or the user's."""

    state: str | None
    runtime: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """`[sampling]`: back end, rates at which GPUs are read, and limits of the cost."""

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
    """`[ingest]`: which traces are accepted, and how large they may be."""

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
    """`[store]`: limits of stored steps and reports, and the disk space that must stay free."""

    max_bytes: int
    max_days: float
    min_free_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderConfig:
    """`[recorder]`: limits of the samples that the flight recorder stores."""

    max_bytes: int
    max_days: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """`[metrics]`: listen address and profile of the metrics for Prometheus."""

    listen: str
    profile: Literal["minimal", "standard", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """`[api]`: address of the API, and who may use it."""

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
    """A rule of `traces.classes`: the class of kernels whose name matches a pattern."""

    kernel_class: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesConfig:
    """`[traces]`: site-specific rules: device map, data waits, marks of steps, kernel classes."""

    device_map: str | None
    data_wait_patterns: tuple[str, ...]
    step_marker: str | None
    classes: tuple[ClassSetting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConfig:
    """`[reference]`: reference clocks of losses; a model's goes first; None: the driver's."""

    sm_clock_mhz: float | None
    limit_mhz: float | None
    models: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """`[privacy]`: whether names of kernels and modules, which reveal architectures, are shown."""

    names: Literal["full", "hashed", "classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration; `origins` maps each key ("sampling.hz") to where it was set."""

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
