"""What an agent of one H100 answers, as plain JSON: written by hand from the API's own document."""

from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"

UNIX_NS = 1_800_000_000_000_000_000


def status(trouble: str | None = None, *, simulated: bool = False) -> dict[str, Json]:
    return {
        "version": "1.2.3",
        "node": "node7",
        "started_unix_ns": UNIX_NS,
        "snapshot_unix_ns": UNIX_NS + 60_000_000_000,
        "snapshot_age_s": 0.4,
        "trouble": trouble,
        "backend": {"name": "nvml", "up": True, "driver": "560.35", "simulated": simulated},
        "gpus": 1,
        "gpus_up": 1,
        "sampler": {
            "condition": "running",
            "reason": None,
            "pid": 77,
            "restart_count": 2,
            "abandoned_pids": [],
        },
        "pause": None,
        "archive": {
            "bytes": 300 * 2**20,
            "oldest_unix_ns": UNIX_NS,
            "lost_samples": 0,
            "damaged_chunks": 0,
            "trouble": None,
        },
        "store": {"bytes": 2**20, "steps": 12, "traces": 3, "in_memory": 0, "trouble": None},
        "analysis": {
            "mode": "here",
            "waiting": 0,
            "working_on": None,
            "worker_pid": None,
            "outcomes": {"analysed": 3},
            "spool_bytes": 0,
            "trouble": None,
        },
        "processes": {},
        "a_key_of_a_later_version": 1,
    }


def gpus(
    *, up: bool = True, sampled_s: float = 50.0, lost_s: float = 12.5, after_s: float = 60.0
) -> dict[str, Json]:
    reading: dict[str, Json] = {
        "sm_clock_mhz": 1485.0 if up else None,
        "mem_clock_mhz": 2619.0 if up else None,
        "power_w": 698.4 if up else None,
        "energy_j": None,
        "temperature_c": 66.0 if up else None,
        "memory_used_bytes": None,
        "activity_ratio": 0.98 if up else None,
        "causes": ["power_cap", "a_cause_of_a_later_version"] if up else None,
        "power_limit_w": 600.0 if up else None,
    }
    gpu: dict[str, Json] = {
        "gpu": "0",
        "up": up,
        "last_sample_unix_ns": UNIX_NS,
        "info": {
            "gpu": "0",
            "index": 0,
            "uuid": "GPU-0",
            "name": "NVIDIA H100 80GB HBM3",
            "vendor": "nvidia",
            "sm_clock_max_mhz": 1980.0,
            "power_limit_w": 700.0,
        },
        "reading": reading,
        "totals": {
            "sm_cycles": 1e12,
            "sampled_s": sampled_s,
            "busy_s": sampled_s,
            "busy_sm_cycles": 1e12,
            "busy_sampled_s": sampled_s,
            "energy_j": None,
            "limited_s": {"power_cap": 40.0},
            "lost_live_s": {"power_cap": lost_s},
        },
        "excess_live_s": None,
        "residency": [{"up_to_mhz": 1980.0, "time_s": 50.0}, {"up_to_mhz": None, "time_s": 0.0}],
        "sampling": {
            "asked_hz": 10.0,
            "kept_hz": 9.96,
            "ticks": 600,
            "missed": 1,
            "failed": 0,
            "lost": 0,
            "driver_s": 0.1,
            "hung": None,
        },
    }
    return {"snapshot_unix_ns": UNIX_NS + round(after_s * 1e9), "simulated": False, "gpus": [gpu]}
