"""The parsed configuration: one dataclass for each section."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct


class NodeConfig(Struct, frozen=True, kw_only=True):
    """`[node]`: name of this node; None for the host's name, in a pod the pod's."""

    name: str | None


class PathsConfig(Struct, frozen=True, kw_only=True):
    """`[paths]`: folders of state and sockets; None for the system's, or the user's."""

    state: str | None
    runtime: str | None


class SamplingConfig(Struct, frozen=True, kw_only=True):
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


class IngestConfig(Struct, frozen=True, kw_only=True):
    """`[ingest]`: which traces are accepted, and how large they may be."""

    max_stored_bytes: int
    max_decompressed_bytes: int
    roots: tuple[str, ...]
    settle_s: float
    keep_failed: int


class AnalysisConfig(Struct, frozen=True, kw_only=True):
    """`[analysis]`: whether traces are analysed on this node, and what that may cost."""

    mode: Literal["here", "off", "spool"]
    memory_max_bytes: int
    timeout_s: float
    idle_s: float
    keep_traces: bool
    spool_max_bytes: int


class StoreConfig(Struct, frozen=True, kw_only=True):
    """`[store]`: limits of stored steps and reports, and the disk space that must stay free."""

    max_bytes: int
    max_days: float
    min_free_ratio: float


class RecorderConfig(Struct, frozen=True, kw_only=True):
    """`[recorder]`: limits of the samples that the flight recorder stores."""

    max_bytes: int
    max_days: float


class MetricsConfig(Struct, frozen=True, kw_only=True):
    """`[metrics]`: listen address and profile of the metrics for Prometheus."""

    listen: str
    profile: Literal["minimal", "standard", "full"]


class ApiConfig(Struct, frozen=True, kw_only=True):
    """`[api]`: address of the API, and who may use it."""

    listen: str
    admin_group: str
    token_file: str | None
    allowed_hosts: tuple[str, ...]
    insecure: bool


class HealthConfig(Struct, frozen=True, kw_only=True):
    """`[health]`: what makes the agent itself unhealthy."""

    fail_on_lost_driver: bool


class ClassSetting(msgspec.Struct, frozen=True, kw_only=True, rename={"kernel_class": "class"}):
    """A rule of `traces.classes`: the class of kernels whose name matches a pattern."""

    kernel_class: str
    pattern: str


class TracesConfig(Struct, frozen=True, kw_only=True):
    """`[traces]`: site-specific rules: device map, data waits, marks of steps, kernel classes."""

    device_map: str | None
    data_wait_patterns: tuple[str, ...]
    step_marker: str | None
    classes: tuple[ClassSetting, ...]


class ReferenceConfig(Struct, frozen=True, kw_only=True):
    """`[reference]`: reference clocks of losses; a model's goes first; None: the driver's."""

    sm_clock_mhz: float | None
    limit_mhz: float | None
    models: Mapping[str, float]


class PrivacyConfig(Struct, frozen=True, kw_only=True):
    """`[privacy]`: whether names of kernels and modules, which reveal architectures, are shown."""

    names: Literal["full", "hashed", "classes"]


class Config(Struct, frozen=True, kw_only=True):
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
