"""Names that expressions may use: the exporter's catalogue, and metrics that it lacks yet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from chopperd.export.metric import Kind, Metric, Profile
from chopperd.export.rendering import CATALOGUE

#: Values of a label, or None where the set is open.
Values = tuple[str, ...] | None

#: Labels of the scraped target, which every series may have; `rack` where a site adds it.
TARGET_LABELS: Final = ("cluster", "instance", "job", "rack")
#: What identifies a GPU, also where two clusters have nodes of one name.
GPU_LABELS: Final = "cluster, instance, gpu"
NODE_LABELS: Final = "cluster, instance"

STEP_MARKS: Final = "steps that the job marks, which no released agent exports yet"
WORKLOADS: Final = "chopperd_workload_info, which no released agent exports yet"
FULL: Final = "metrics.profile = full"
MEMORY: Final = "a capture with profile_memory=True"
RANKS: Final = "a capture of all ranks of the node, which no released agent exports yet"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric as expressions may name it.

    Attributes:
        name: Whole, with the prefix.
        labels: Its own labels with their values.
        needs: What has to be there in addition to an agent with the profile `standard`.
    """

    name: str
    labels: Mapping[str, Values]
    needs: tuple[str, ...] = ()


def _planned(needs: str, *names: str, **labels: Values) -> dict[str, Series]:
    """Return metrics of the design that the catalogue may still lack."""
    own: dict[str, Values] = {"gpu": None, **labels}
    return {f"chopperd_{name}": Series(f"chopperd_{name}", own, (needs,)) for name in names}


#: Of the design (DESIGN § 7); a metric of the same name in the catalogue goes first.
PLANNED: Final[Mapping[str, Series]] = {
    **_planned(WORKLOADS, "workload_info", workload=None, rank=None),
    **_planned(STEP_MARKS, "steps_total", "step_seconds_total", "step_tokens_total"),
    **_planned(RANKS, "traced_last_rank_total", "traced_wait_caused_seconds_total"),
}


def _needs(each: Metric) -> Iterator[str]:
    if each.name.startswith("chopperd_traced_memory") and each.kind is Kind.GAUGE:
        yield MEMORY  # peaks; calls are in every capture
    if each.profile > Profile.STANDARD:
        yield FULL


#: All that is exported or planned.
KNOWN: Final[Mapping[str, Series]] = {
    **PLANNED,
    **{
        each.name: Series(
            each.name, {label.name: label.values for label in each.labels}, tuple(_needs(each))
        )
        for each in CATALOGUE
    },
}


def metric(name: str, /, **matchers: str | tuple[str, ...]) -> str:
    """Return the selector of a metric, named without the common prefix.

    Args:
        name: As in the catalogue, without `chopperd_`.
        matchers: Labels with the value, or the values, to take.

    Raises:
        ValueError: The catalogue has no such metric, label or value.
    """
    whole = f"chopperd_{name}"
    if whole not in KNOWN:
        raise ValueError(f"the catalogue has no metric {whole}")
    return selector(KNOWN[whole], [matcher(KNOWN[whole], *each) for each in matchers.items()])


def selector(series: Series, matchers: list[str]) -> str:
    """Return the selector of a series with matchers."""
    return f"{series.name}{{{', '.join(matchers)}}}" if matchers else series.name


def matcher(series: Series, label: str, value: str | tuple[str, ...]) -> str:
    """Return one matcher.

    Raises:
        ValueError: The series has no such label, or the label never has the value.
    """
    if label not in series.labels and label not in TARGET_LABELS:
        raise ValueError(f"{series.name} has no label {label}")
    wanted = (value,) if isinstance(value, str) else value
    allowed = series.labels.get(label)
    for each in wanted:
        if allowed is not None and each not in allowed:
            raise ValueError(f"{label} of {series.name} is never {each!r}")
    return f'{label}="{value}"' if isinstance(value, str) else f'{label}=~"{"|".join(value)}"'
