"""What the API says of the node, as the model that pages are made from."""

import math

from chopperd.api import models
from chopperd.model.causes import CAUSE_BY_LABEL, Cause
from chopperd.model.devices import DeviceReading
from chopperd.model.live import GpuLive, LiveTotals, NodeSnapshot


def snapshot_of(status: models.Status, gpus: models.Gpus) -> NodeSnapshot:
    """The node now; the API tells Unix times only, so both of its times are that."""
    return NodeSnapshot(
        taken_unix_ns=gpus.snapshot_unix_ns,
        taken_mono_ns=gpus.snapshot_unix_ns,
        started_unix_ns=status.started_unix_ns,
        version=status.version,
        node=status.node,
        backend=status.backend.name,
        backend_up=status.backend.up,
        chosen=status.backend.chosen,
        driver=status.backend.driver,
        simulated=status.backend.simulated or gpus.simulated,
        gpus=tuple(map(_gpu, gpus.gpus)),
        sampler=status.sampler,
        pause=status.pause,
        archive=status.archive,
        store=status.store,
        analysis=status.analysis,
        processes=status.processes,
        self_test=status.self_test,
    )


def _gpu(gpu: models.Gpu) -> GpuLive:
    sampling = gpu.sampling
    return GpuLive(
        info=gpu.info,
        up=gpu.up,
        last_sample_unix_ns=gpu.last_sample_unix_ns,
        reading=_reading(gpu.reading),
        totals=None if gpu.totals is None else _totals(gpu.totals),
        excess_s=gpu.excess_live_s,
        excess_ratio=gpu.excess_live_ratio,
        residency_s={
            math.inf if bucket.up_to_mhz is None else bucket.up_to_mhz: bucket.time_s
            for bucket in gpu.residency
        },
        ticks_count=sampling.ticks,
        missed_count=sampling.missed,
        failed_count=sampling.failed,
        invalid_count=sampling.invalid,
        lost_count=sampling.lost,
        driver_s=sampling.driver_s,
        asked_hz=sampling.asked_hz,
        kept_hz=sampling.kept_hz,
        pace=sampling.pace,
        hung=sampling.hung,
        timing=gpu.timing,
        processes=gpu.processes,
        trouble=gpu.trouble,
        dies=gpu.dies,
    )


def _reading(reading: models.Reading) -> DeviceReading:
    return DeviceReading(
        sm_clock_mhz=reading.sm_clock_mhz,
        mem_clock_mhz=reading.mem_clock_mhz,
        power_w=reading.power_w,
        energy_j=reading.energy_j,
        temperature_c=reading.temperature_c,
        memory_used_bytes=reading.memory_used_bytes,
        activity_ratio=reading.activity_ratio,
        causes=None if reading.causes is None else frozenset(map(_cause, reading.causes)),
        power_average_w=reading.power_average_w,
        temperature_memory_c=reading.temperature_memory_c,
        memory_reserved_bytes=reading.memory_reserved_bytes,
        power_limit_w=reading.power_limit_w,
    )


def _totals(totals: models.Totals) -> LiveTotals:
    return LiveTotals(
        sm_cycles=totals.sm_cycles,
        sampled_s=totals.sampled_s,
        busy_s=totals.busy_s,
        busy_sm_cycles=totals.busy_sm_cycles,
        busy_sampled_s=totals.busy_sampled_s,
        energy_j=totals.energy_j,
        limited_s={_cause(label): value_s for label, value_s in totals.limited_s.items()},
        lost_s={_cause(label): value_s for label, value_s in totals.lost_live_s.items()},
    )


def _cause(label: str) -> Cause:
    """The cause of this name; an agent of a later version may know others."""
    return CAUSE_BY_LABEL.get(label, Cause.UNKNOWN)
