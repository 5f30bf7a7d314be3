"""The options of reports by the configuration."""

from chopperd.config.sections import Config
from chopperd.model.kinds import KernelClass
from chopperd.model.run import DeviceMap, device_map_of
from chopperd.pipeline.reports import ReportOptions
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.traces.kernels.classes import ClassRule
from chopperd.traces.read.source import ReadLimits


def read_limits(config: Config) -> ReadLimits:
    """The largest files that are read."""
    return ReadLimits(
        stored_bytes=config.ingest.max_stored_bytes,
        expanded_bytes=config.ingest.max_decompressed_bytes,
    )


def configured_options(config: Config, *, in_agent: bool = False) -> ReportOptions:
    """The options of a report by the configuration alone."""
    device_map = config.traces.device_map
    return ReportOptions(
        join=JoinOptions(
            device_map=device_map_of(device_map, "traces.device_map")
            if device_map
            else DeviceMap(),
            in_agent=in_agent,
            model_references_mhz=config.reference.models,
            default_reference_mhz=config.reference.sm_clock_mhz,
            limit_mhz=config.reference.limit_mhz,
        ),
        limits=read_limits(config),
        data_wait_patterns=config.traces.data_wait_patterns,
        class_rules=tuple(
            ClassRule(KernelClass[rule.kernel_class.upper()], rule.pattern)
            for rule in config.traces.classes
        ),
        names=config.privacy.names,
    )
