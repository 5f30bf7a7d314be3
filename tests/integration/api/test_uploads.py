"""Handing in traces, in process."""

from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette

from chopperd.errors import IngestError, IngestReason
from tests.fakes.api_services import OWNER_UID, TOKEN, FakeAgent
from tests.integration.api.asking import ELSEWHERE, ask, check_problem

V1 = "/api/v1"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def test_a_trace_is_taken_once(agent: FakeAgent, api: Starlette) -> None:
    url = f"{V1}/traces?name=rank0.json.gz&job=train"
    first = ask(api, "POST", url, uid=OWNER_UID, content=b"abc")
    # sha256sum of "abc" begins so.
    assert (first.status_code, first.json()["id"]) == (202, "ba7816bf8f01cfea")
    assert first.headers["location"] == f"{V1}/traces/ba7816bf8f01cfea"
    assert ask(api, "POST", url, uid=OWNER_UID, content=b"abc").status_code == 200
    taken = agent.ingest.taken[0]
    assert (taken.name, taken.job, taken.owner_uid) == ("rank0.json.gz", "train", OWNER_UID)
    assert agent.ingest.expected == [3, 3]


def test_an_unknown_user_hands_in_nothing(agent: FakeAgent, api: Starlette) -> None:
    check_problem(ask(api, "POST", f"{V1}/traces", content=b"abc"), 401)
    assert ask(api, "POST", f"{V1}/traces", content=b"abc", headers=BEARER).status_code == 202
    assert [each.owner_uid for each in agent.ingest.taken] == [None]


def test_a_file_of_the_node_is_taken_by_its_path(agent: FakeAgent, api: Starlette) -> None:
    answer = ask(api, "POST", f"{V1}/traces?path=/scratch/a.json&job=train", uid=OWNER_UID)
    assert answer.status_code == 202
    assert [each.name for each in agent.ingest.taken] == ["/scratch/a.json"]
    both = f"{V1}/traces?path=/scratch/a.json&name=b"
    check_problem(ask(api, "POST", both, uid=OWNER_UID), 400)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (IngestReason.OFF, 409),
        (IngestReason.TOO_LARGE, 413),
        (IngestReason.NO_ROOM, 507),
        (IngestReason.FORBIDDEN, 403),
        (IngestReason.NOT_FOUND, 404),
        (IngestReason.BUSY, 503),
    ],
)
def test_refused_traces_say_why(
    agent: FakeAgent, api: Starlette, reason: IngestReason, status: int
) -> None:
    agent.ingest.refusal = IngestError("that is why", reason=reason)
    for url in (f"{V1}/traces", f"{V1}/traces?path=/a"):
        problem = check_problem(ask(api, "POST", url, uid=0, content=b"x"), status)
        assert problem["detail"] == "that is why"


def test_a_trace_that_grows_too_large_is_forgotten(agent: FakeAgent, api: Starlette) -> None:
    agent.ingest.max_bytes = 2**20

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(2**20)

    answer = ask(api, "POST", f"{V1}/traces?name=big", uid=0, content=pieces())
    check_problem(answer, 413)
    assert agent.ingest.aborted == ["big"]
    assert agent.ingest.taken == []


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "a%00b", "x" * 300, "a%0ab", ""])
def test_names_that_could_be_paths_are_refused(api: Starlette, name: str) -> None:
    check_problem(ask(api, "POST", f"{V1}/traces?name={name}", uid=0, content=b"x"), 400)


def test_a_container_that_can_not_be_told_may_send_bytes_and_see_nothing(api: Starlette) -> None:
    """As from a pod, where the agent does not share the node's process ids."""
    answer = ask(api, "POST", f"{V1}/traces?name=a", uid=ELSEWHERE, content=b"x")
    assert answer.status_code == 202
    check_problem(ask(api, "POST", f"{V1}/traces?path=/a", uid=ELSEWHERE), 403)
    for url in ("traces", "steps", "jobs"):
        check_problem(ask(api, "GET", f"{V1}/{url}", uid=ELSEWHERE), 401)
    check_problem(ask(api, "POST", f"{V1}/pause", uid=ELSEWHERE), 401)
    check_problem(ask(api, "POST", f"{V1}/traces?name=a", content=b"x"), 401)
