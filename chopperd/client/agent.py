"""Client of this node's agent: one method for each request, answers as typed values."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final, TypeVar

import msgspec
from msgspec.structs import asdict

from chopperd.api import models
from chopperd.client.transport import Transport, api_endpoints, metrics_endpoints, read_token
from chopperd.config.sections import Config
from chopperd.errors import AgentUnreachableError
from chopperd.model.captures import GpuDrop, JobEntry, StepQuery, TraceEntry
from chopperd.model.live import NodeSnapshot
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row

Answer = TypeVar("Answer")

_API: Final = "/api/v1"
_JSON: Final = "application/json"
_NEWS: Final = b"event: snapshot"
_PAGE_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class AgentClient:
    """Sends requests to the agent of this node.

    Any request may raise `AgentUnreachableError` or `AgentRefusedError`, with one line for people.
    """

    api: Transport
    exposition: Transport  # the metrics

    @staticmethod
    def of(config: Config) -> "AgentClient":
        """Return a client of the agent at its configured addresses."""
        api = api_endpoints(config)
        return AgentClient(
            api=Transport(api, token=read_token(config.api.token_file)),
            exposition=Transport((*api, *metrics_endpoints(config))),
        )

    def status(self) -> models.Status:
        """Request the status of the agent."""
        return self.status_and_json()[0]

    def status_and_json(self) -> tuple[models.Status, bytes]:
        """Request the status of the agent; return it parsed and as JSON."""
        body = self.api.fetch(f"{_API}/status", accept=_JSON)
        return _decoded(body, models.Status), body

    def gpus(self) -> models.Gpus:
        """Request the present state of all GPUs."""
        return self._get("/gpus", models.Gpus)

    def snapshot(self) -> NodeSnapshot:
        """Request the present state of the agent and its GPUs, in two requests."""
        return models.snapshot_of(self.status(), self.gpus())

    def snapshots(self) -> Generator[NodeSnapshot]:
        """Yield the state of agent and GPUs whenever the agent takes a snapshot.

        Raises:
            AgentUnreachableError: The agent or the connection has ended.
        """
        with self.api.opened(f"{_API}/stream", accept="text/event-stream") as events:
            try:
                for line in events:
                    if line.rstrip() == _NEWS:
                        yield self.snapshot()
            except (OSError, HTTPException) as error:
                raise AgentUnreachableError("the agent broke off its stream") from error
        raise AgentUnreachableError("the agent has ended")

    def report_latest(self, job: str | None = None) -> ReportDocument:
        """Request the report on the newest capture, of a job or of any, with kernel families."""
        return self._get("/report/latest", ReportDocument, {"job": job, "include": "families"})

    def steps(self, query: StepQuery, *, limit: int, cursor: str | None = None) -> models.Steps:
        """Request a page of step rows, newest first; `cursor` is that of the previous page."""
        asked = {name.removesuffix("_unix_ns"): value for name, value in asdict(query).items()}
        return self._get("/steps", models.Steps, {**asked, "limit": limit, "cursor": cursor})

    def last_steps(self, query: StepQuery, count: int) -> tuple[Row, ...]:
        """Request all rows of the last `count` steps that match, oldest step first."""
        found: list[Row] = []
        cursor: str | None = None
        while True:
            page = self.steps(query, limit=_PAGE_ROWS, cursor=cursor)
            found += page.steps
            cursor = page.cursor
            if cursor is None or len(_step_keys(found)) > count:
                break
        wanted = {key: nth for nth, key in enumerate(reversed(_step_keys(found)[:count]))}
        # Within a step by rank, then device; unknown first.
        found.sort(key=lambda row: (_number(row.rank), _number(row.device)))
        chosen = [row for row in found if _step_key(row) in wanted]
        return tuple(sorted(chosen, key=lambda row: wanted[_step_key(row)]))

    def traces(self, limit: int = _PAGE_ROWS) -> tuple[TraceEntry, ...]:
        """Request the traces that the agent received, newest first."""
        return self._get("/traces", models.Traces, {"limit": limit}).traces

    def jobs(self) -> tuple[JobEntry, ...]:
        """Request the jobs that traces came from, newest first."""
        return self._get("/jobs", models.Jobs).jobs

    def drops(self, *, gpu: str | None, limit: int) -> tuple[GpuDrop, ...]:
        """Request drops of busy clocks, newest first; only of one GPU if `gpu` is given."""
        return self._get("/drops", models.Drops, {"gpu": gpu, "limit": limit}).drops

    def metrics(self) -> str:
        """Request the metrics in Prometheus's text format."""
        return self.exposition.fetch("/metrics").decode()

    def _get(
        self, path: str, answer: type[Answer], query: Mapping[str, str | int | None] | None = None
    ) -> Answer:
        return _decoded(self.api.fetch(f"{_API}{path}", query, accept=_JSON), answer)


def _decoded(body: bytes, answer: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        message = f"the answer is not from a chopperd agent of this version: {error}"
        raise AgentUnreachableError(message) from error


def _step_keys(rows: Sequence[Row]) -> list[tuple[str | None, str | None, int | None]]:
    """Return job, run and number of each step in the rows, in the order of first occurrence."""
    return list(dict.fromkeys(map(_step_key, rows)))


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _step_key(row: Row) -> tuple[str | None, str | None, int | None]:
    return row.job, row.run, row.step
