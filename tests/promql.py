"""The boards' PromQL without Grafana: its variables filled in, and what an expression names."""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric and the labels by which an expression picks series of it."""

    metric: str
    labels: frozenset[str]


def filled_in(
    expression: str,
    *,
    window: str,
    node: str = ".*",
    cluster: str = ".*",
    workload: str = ".*",
    gpu: str = ".*",
) -> str:
    """As Grafana sends it: for all nodes, clusters, workloads and GPUs unless said.

    The time shown is an hour.
    """
    values = {
        "$__rate_interval": window,
        "$__range": "1h",
        "$cluster": cluster,
        "$node": node,
        "$workload": workload,
        "$gpu": gpu,
    }
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    return expression


def selectors(expression: str) -> list[Selector]:
    """Every selector of an expression without variables.

    Raises:
        ValueError: It is not PromQL.
    """
    return [
        Selector(node.name or "", frozenset(matcher.name for matcher in node.matchers.matchers))
        for node in _nodes(expression)
        if isinstance(node, promql_parser.VectorSelector)
    ]


def grouping_labels(expression: str) -> set[str]:
    """The labels by which it sums or matches."""
    found: set[str] = set()
    for node in _nodes(expression):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.update(node.modifier.labels)
        if isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None:
            matching = node.modifier.matching
            found.update(matching.labels if matching is not None else ())
            found.update(node.modifier.group_labels or ())
    return found


def _nodes(expression: str) -> Iterator[promql_parser.Expr]:
    nodes: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), pre_visit=nodes.append)
    return iter(nodes)
