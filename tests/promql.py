"""The boards' PromQL without Grafana: its variables filled in, and what an expression names."""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric and the labels by which an expression picks series of it."""

    metric: str
    labels: frozenset[str]


def filled_in(expression: str, *, node: str, window: str, cluster: str = "") -> str:
    """As Grafana sends it, for one node and all its GPUs; no cluster where nothing is labelled."""
    text = expression.replace("$__rate_interval", window).replace("$cluster", cluster)
    return text.replace("$node", node).replace("$gpu", ".*")


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
