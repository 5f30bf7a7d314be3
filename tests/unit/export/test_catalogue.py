"""Rules that every metric keeps, whoever adds one."""

import re
from collections import Counter
from typing import get_args, get_type_hints

import pytest
from msgspec.structs import replace

from chopperd.config.sections import MetricsConfig
from chopperd.export.metric import Kind, Metric, Profile
from chopperd.export.rendering import CATALOGUE, metrics_of
from tests.exposition import families, rendered, series
from tests.fakes.snapshots import full_snapshot

EVERY_METRIC = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
BASE_UNITS = ("hertz", "seconds", "watts", "joules", "celsius", "bytes", "ratio", "cycles")
#: What a unit must not be written as; promtool lets some of these pass.
WRONG_UNITS = re.compile(
    r"_(mhz|ghz|khz|hz|ms|us|ns|s|w|mw|kw|j|mj|kj|c|kb|mb|gb|kib|mib|gib|b|percent|percentage|pct|"
    r"milliwatts|millijoules|megahertz|gigabytes|megabytes|kilobytes|milliseconds|minutes|hours)"
    r"(_|$)"
)
#: Label values that the node tells: identities that stay as long as the GPU or the agent.
OPEN_LABELS = {"gpu", "uuid", "pci_bus_id", "name", "vendor", "backend", "version", "parent"}
MOST_VALUES = 20


@EVERY_METRIC
def test_a_name_has_the_suffixes_of_its_kind_and_unit(metric: Metric) -> None:
    assert re.fullmatch(r"chopperd_(gpu|traced|agent)_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert not WRONG_UNITS.search(metric.name)
    stem = metric.name.removesuffix("_total")
    units = [unit for unit in BASE_UNITS if stem.endswith(f"_{unit}")]
    assert units == ([metric.unit] if metric.unit else [])


@EVERY_METRIC
def test_help_is_one_line_without_a_stop_and_the_documentation_names_the_unit(
    metric: Metric,
) -> None:
    assert metric.help
    assert "\n" not in metric.help
    assert not metric.help.endswith(".")
    assert "|" not in metric.help  # it stands in a Markdown table
    assert not set(metric.help) & set('"\\')  # and needs no escape where it is scraped
    assert metric.documentation.endswith(f"({metric.unit})." if metric.unit else ".")


@EVERY_METRIC
def test_labels_are_the_gpu_and_at_most_one_closed_set(metric: Metric) -> None:
    closed = [label for label in metric.labels if label.values is not None]
    if metric.kind is Kind.INFO:
        assert len(metric.labels) <= MOST_VALUES
    else:
        assert len(closed) <= 1
        assert len(metric.labels) <= 2
    assert {label.name for label in metric.labels if label.values is None} <= OPEN_LABELS
    for label in closed:
        values = label.values or ()
        assert 1 <= len(values) <= MOST_VALUES
        assert len(set(values)) == len(values)
    assert not {label.name for label in metric.labels} & {"job", "pod", "namespace", "instance"}


def test_names_are_unique_and_none_is_the_start_of_a_histogram() -> None:
    assert max(Counter(metric.name for metric in CATALOGUE).values()) == 1
    assert max(Counter(metric.family_name for metric in CATALOGUE).values()) == 1
    for metric in CATALOGUE:
        assert not metric.name.endswith(("_bucket", "_count", "_sum", "_created"))


def test_profiles_hold_the_ones_before_them() -> None:
    minimal, standard, full = (set(metrics_of(profile)) for profile in Profile)
    assert minimal < standard < full == set(CATALOGUE)
    names = [profile.name.lower() for profile in Profile]
    assert names == list(get_args(get_type_hints(MetricsConfig)["profile"]))


@pytest.mark.parametrize(
    ("profile", "of_gpus", "of_agent"),
    # By hand, for one GPU of which all is known. Minimal: up, info, clock, reference, cycles,
    # sampled, busy, busy cycles, busy sampled, excess, power, limit, energy, 2 temperatures.
    # Standard adds drops, default limit, memory used and size, activity, last sample, kept
    # rate; 10 causes lost; 5 counters of NVML; traced: 12 rows, 10 causes, the time. Full adds 11
    # buckets, 13 classes, the loss of 10 compute classes, 2 figures of drops, the memory clock, the
    # memory reserved, the temperature at which the hardware slows down, the spread of dies, 8
    # figures of traced device memory, and 5 paces.
    # The agent, minimal: build, backend, simulated, paused, snapshot, ticks, missed, restarts,
    # series, render errors. Standard adds start, 3 kinds of call, 3 of faults, abandoned, lost
    # samples, damaged chunks, recorder and its limit, store, memory rows, spool, waiting, 6
    # outcomes, 3 troubles, faults of 7 parts, 4 figures of 3 processes, and what a step takes by
    # the self-test with both bounds.
    [
        (Profile.MINIMAL, 15, 10),
        (Profile.STANDARD, 15 + 7 + 10 + 5 + 23, 10 + 47),
        (Profile.FULL, 15 + 7 + 10 + 5 + 23 + 11 + 23 + 3 + 2 + 1 + 8 + 5, 10 + 47),
    ],
)
def test_the_series_of_eight_gpus_are_as_many_as_said(
    profile: Profile, of_gpus: int, of_agent: int
) -> None:
    found = series(rendered(full_snapshot(8), profile))
    per_gpu = Counter(dict(labels).get("gpu") for _, labels in found)
    assert {per_gpu[str(index)] for index in range(8)} == {of_gpus}
    assert per_gpu[None] == of_agent
    assert found[("chopperd_agent_series", ())] == 8 * of_gpus + of_agent == len(found)
    if profile is Profile.STANDARD:
        assert of_gpus <= 60


def test_every_metric_has_a_series_where_everything_is_known() -> None:
    found = {family.name for family in families(rendered(full_snapshot(hung=True)))}
    named = {
        metric.family_name if metric.kind is Kind.COUNTER else metric.name for metric in CATALOGUE
    }
    assert found == named


def test_a_way_to_the_memory_that_is_not_known_here_does_not_cost_what_the_gpu_is() -> None:
    snapshot = full_snapshot()
    gpus = tuple(
        replace(gpu, info=replace(gpu.info, memory_source="of its own")) for gpu in snapshot.gpus
    )
    text = rendered(replace(snapshot, gpus=gpus))
    assert 'memory_source="other"' in text
