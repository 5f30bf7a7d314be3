"""The applications in process: every route, every refusal."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette

from chopperd import palette
from chopperd.api.app import build_api, build_metrics
from chopperd.api.routes import ROUTES
from chopperd.api.routing import ApiServices
from chopperd.model.captures import DeviceKernels, DropQuery
from chopperd.model.kinds import Cause
from chopperd.model.live import LiveTotals
from chopperd.units import NS_PER_S
from tests.fakes.api_services import (
    ADMIN_UID,
    AGENT_UID,
    CAPTURE,
    OWNER_UID,
    STRANGER_UID,
    TOKEN,
    FakeAgent,
)
from tests.fakes.drops import gpu_drop
from tests.fakes.samples import START_UNIX_NS
from tests.integration.api.asking import ask, check_problem, client
from tests.unit.report.documents import eight_gpus

V1 = "/api/v1"
BEARER = {"authorization": f"Bearer {TOKEN}"}


def test_the_document_is_openapi_3_1(api: Starlette) -> None:
    document = ask(api, "GET", "/openapi.json").json()
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"] == "3.1.0"


PATH_VALUES = {
    "gpu": "0",
    "job": "train",
    "step": "4",
    "trace": "0123456789abcdef",
    "file": "swagger-ui.css",
    "asset": "page.css",
}


def test_every_route_in_the_document_answers_as_it_says(api: Starlette) -> None:
    document = ask(api, "GET", "/openapi.json").json()
    called = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            url = path.format(**PATH_VALUES)
            how = "HEAD" if path.endswith("/stream") else method.upper()
            answer = ask(api, how, url, uid=0, content=b"{}" if method == "post" else b"")
            said = operation["responses"].get(str(answer.status_code))
            assert said is not None, (method, url, answer.status_code)
            assert answer.is_success, (method, url, answer.text)
            kind = answer.headers.get("content-type", "").partition(";")[0]
            assert kind in said.get("content", {"": None}), (url, kind)
            called += 1
    assert called == len(ROUTES)


def test_documented_parameters_are_those_that_are_read(api: Starlette) -> None:
    document = ask(api, "GET", "/openapi.json").json()
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert [each["name"] for each in operation["parameters"]] == [
            each.name for each in route.parameters
        ]


def test_drops_are_for_everyone_by_gpu_and_time(agent: FakeAgent, api: Starlette) -> None:
    agent.drops.held = [gpu_drop(20, None), gpu_drop(10)]
    query = f"gpu=0&from={START_UNIX_NS}&to={START_UNIX_NS + 60 * NS_PER_S}&limit=1"
    answer = ask(api, "GET", f"{V1}/drops?{query}")
    (drop,) = answer.json()["drops"]
    assert (drop["gpu"], drop["state"], drop["end_unix_ns"]) == ("0", "open", None)
    assert (drop["cause"], drop["lost_by_cause_s"]) == (
        "power_cap",
        {"power_cap": 0.3, "thermal": 0.1},
    )
    span_ns = {"from_unix_ns": START_UNIX_NS, "to_unix_ns": START_UNIX_NS + 60 * NS_PER_S}
    assert agent.drops.asked == [(DropQuery(gpu="0", **span_ns), 1)]
    everything = ask(api, "GET", f"{V1}/drops").json()["drops"]
    assert [each["begin_unix_ns"] for each in everything] == [
        START_UNIX_NS + 20 * NS_PER_S,
        START_UNIX_NS + 10 * NS_PER_S,
    ]
    check_problem(ask(api, "GET", f"{V1}/drops?limit=0"), 400)


def test_status_tells_the_age_of_what_it_says(agent: FakeAgent, api: Starlette) -> None:
    agent.clock.advance(2_500_000_000)
    agent.health.why = "the loop is late"
    status = ask(api, "GET", f"{V1}/status").json()
    assert status["snapshot_age_s"] == 2.5
    assert (status["gpus"], status["gpus_up"]) == (2, 2)
    assert status["trouble"] == "the loop is late"


@pytest.mark.parametrize("key", ["1", "GPU-1", "gpu-1", "00000000:61:00.0", "0000:61:00.0"])
def test_a_gpu_is_found_by_label_uuid_and_pci_id(api: Starlette, key: str) -> None:
    assert ask(api, "GET", f"{V1}/gpus/{key}").json()["gpu"] == "1"


def test_a_gpu_that_is_down_has_no_values(agent: FakeAgent, api: Starlette) -> None:
    down = replace(agent.snapshots.current.gpus[0], up=False, totals=LiveTotals(sm_cycles=5.0))
    down = replace(down, reading=replace(down.reading, sm_clock_mhz=None, causes=None))
    agent.snapshots.current = replace(agent.snapshots.current, gpus=(down,))
    gpu = ask(api, "GET", f"{V1}/gpus/0").json()
    assert gpu["up"] is False
    assert gpu["reading"]["sm_clock_mhz"] is None
    assert gpu["reading"]["causes"] is None
    assert gpu["totals"]["sm_cycles"] == 5.0
    assert gpu["totals"]["busy_s"] is None


def test_causes_go_by_name_and_the_last_bucket_has_no_edge(api: Starlette) -> None:
    gpu = ask(api, "GET", f"{V1}/gpus/0").json()
    assert gpu["reading"]["causes"] == ["power_cap", "thermal"]
    assert gpu["totals"]["lost_live_s"] == {Cause.POWER_CAP.label: 3.5}
    assert gpu["residency"] == [
        {"up_to_mhz": 1500.0, "time_s": 2.0},
        {"up_to_mhz": None, "time_s": 1.0},
    ]


def test_an_unknown_gpu_is_named_with_those_there_are(api: Starlette) -> None:
    problem = check_problem(ask(api, "GET", f"{V1}/gpus/7"), 404)
    assert problem["detail"] == "no such GPU; there are: 0, 1"


def test_few_samples_are_given_each_for_itself(api: Starlette) -> None:
    url = f"{V1}/gpus/0/samples?from={START_UNIX_NS}&to={START_UNIX_NS + 10**9}"
    given = ask(api, "GET", url).json()
    assert given["bin_ns"] is None
    assert given["samples"] == 5
    assert given["values"]["sm_clock_mhz"]["mean"] == [1980, 1905, None, 1410, 1395]


def test_a_time_without_samples_has_no_points(agent: FakeAgent, api: Starlette) -> None:
    agent.samples.held = None
    given = ask(api, "GET", f"{V1}/gpus/0/samples").json()
    assert given["t_unix_ns"] == []
    assert given["values"] == {}
    now = agent.clock.unix_ns()
    assert (given["from_unix_ns"], given["to_unix_ns"]) == (now - 600 * 10**9, now)


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-11-27T10:00:00Z&to=2026-11-27T10:00:00Z",
        "from=2026-11-01T00:00:00Z&to=2026-11-27T10:00:00Z",
        "points=10001",
        "points=0",
        "from=yesterday",
        "form=2026-11-27T10:00:00Z",
        "points=1&points=2",
        "gpu=0",
        "points=%ff",
    ],
)
def test_parameters_that_make_no_sense_are_refused(api: Starlette, query: str) -> None:
    check_problem(ask(api, "GET", f"{V1}/gpus/0/samples?{query}"), 400)


def test_all_bad_parameters_are_named_at_once(api: Starlette) -> None:
    problem = check_problem(ask(api, "GET", f"{V1}/steps?limit=x&rnak=1", uid=0), 400)
    assert problem["errors"] == [
        {"parameter": "rnak", "detail": "no such parameter"},
        {"parameter": "limit", "detail": "must be a whole number from 1 to 1000"},
    ]


def test_steps_are_asked_for_as_the_query_says(agent: FakeAgent, api: Starlette) -> None:
    query = "job=train&run=r1&rank=2&gpu=0.1&from=2026-11-27T10:00:00Z&limit=2&cursor=next"
    page = ask(api, "GET", f"{V1}/steps?{query}", uid=OWNER_UID).json()
    asked, limit, cursor = agent.steps.asked[0]
    assert (asked.job, asked.run, asked.rank, asked.gpu) == ("train", "r1", 2, "0.1")
    assert asked.from_unix_ns == 1_795_773_600 * 10**9  # date -d 2026-11-27T10:00Z +%s
    assert asked.to_unix_ns is None
    assert (limit, cursor) == (2, "next")
    assert (len(page["steps"]), page["cursor"]) == (2, "next")


def test_a_cursor_from_elsewhere_is_refused(api: Starlette) -> None:
    problem = check_problem(ask(api, "GET", f"{V1}/steps?cursor=made-up", uid=0), 400)
    assert problem["errors"] == [{"parameter": "cursor", "detail": "is not the cursor of a page"}]


def test_a_step_of_two_jobs_is_ambiguous(api: Starlette) -> None:
    for url in (f"{V1}/steps/3", f"{V1}/steps/3/kernels"):
        answer = ask(api, "GET", url, uid=OWNER_UID)
        if url.endswith("3"):
            problem = check_problem(answer, 409)
            assert problem["candidates"] == [
                {"job": "train", "run": "r1"},
                {"job": "other", "run": None},
            ]
    step = ask(api, "GET", f"{V1}/steps/3?job=other", uid=OWNER_UID).json()
    assert (step["job"], step["run"], len(step["rows"])) == ("other", None, 1)


def test_kernels_of_several_runs_are_ambiguous(agent: FakeAgent, api: Starlette) -> None:
    first = agent.steps.device_kernels[0]
    agent.steps.device_kernels.append(
        DeviceKernels(job="train", run="r2", rank=0, device=0, gpu="0", families=first.families)
    )
    problem = check_problem(ask(api, "GET", f"{V1}/steps/4/kernels", uid=OWNER_UID), 409)
    assert problem["candidates"] == [{"job": "train", "run": "r1"}, {"job": "train", "run": "r2"}]


def test_kernels_come_by_family(api: Starlette) -> None:
    given = ask(api, "GET", f"{V1}/steps/4/kernels?by=family", uid=OWNER_UID).json()
    assert given["by"] == "family"
    assert [each["class"] for each in given["devices"][0]["families"]] == [
        each.class_ for each in eight_gpus().totals[0].families
    ]
    check_problem(ask(api, "GET", f"{V1}/steps/4/kernels?by=stream", uid=OWNER_UID), 400)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("operation", ["aten::mm", "nccl:all_gather", "aten::_flash_attention_forward"]),
        ("layer", ["layers.7", "(unknown)"]),
        ("phase", ["backward"]),
    ],
)
def test_kernels_come_by_what_launched_them(api: Starlette, by: str, names: list[str]) -> None:
    """The list that was asked for, and none of the others."""
    given = ask(api, "GET", f"{V1}/steps/4/kernels?by={by}", uid=OWNER_UID).json()
    assert given["by"] == by
    (device,) = given["devices"]
    assert [each["name"] for each in device.pop(f"by_{by}")] == names
    lists = [value for value in device.values() if isinstance(value, list)]
    assert lists == [[], [], [], []]


@pytest.mark.parametrize(
    ("accept", "kind", "form"),
    [
        (None, "application/json", "json"),
        ("text/*", "text/plain; charset=utf-8", "text"),
        ("text/csv, text/plain;q=0.5", "text/csv; charset=utf-8", "csv"),
        ("text/markdown", "text/markdown; charset=utf-8", "markdown"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8", "html"),
        ("image/png, */*;q=0.1", "application/json", "json"),
    ],
)
def test_a_report_comes_in_the_form_asked_for(
    api: Starlette, accept: str | None, kind: str, form: str
) -> None:
    headers = {"accept": accept} if accept else {}
    answer = ask(api, "GET", f"{V1}/report/latest", uid=OWNER_UID, headers=headers)
    assert answer.headers["content-type"] == kind
    assert answer.headers["vary"] == "accept"
    assert json.loads(answer.text)["form"] == form


def test_a_page_may_use_its_own_style_and_nothing_else(api: Starlette) -> None:
    answer = ask(api, "GET", f"{V1}/report/latest", uid=0, headers={"accept": "text/html"})
    assert answer.json()["parts"] > 0  # all that `include=families` gives, as it is one file
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert "http" not in policy


def test_other_forms_of_a_report_are_not_to_be_had(api: Starlette) -> None:
    headers = {"accept": "application/pdf"}
    check_problem(ask(api, "GET", f"{V1}/report/latest", uid=0, headers=headers), 406)


def test_families_and_the_like_come_only_where_they_are_asked_for(api: Starlette) -> None:
    """Of each of 8 devices 3 families, 3 operations, 2 layers and 1 phase; of a host 1, 2, 1."""
    for query, count in (("", 0), ("?include=families", 8 * (3 + 3 + 2 + 1) + (1 + 2 + 1))):
        answer = ask(api, "GET", f"{V1}/report/latest{query}", uid=OWNER_UID)
        assert answer.json()["parts"] == count


@pytest.mark.parametrize("query", ["", "?job=train"])
def test_findings_are_those_of_each_jobs_newest_report(api: Starlette, query: str) -> None:
    (job,) = ask(api, "GET", f"{V1}/findings{query}", uid=OWNER_UID).json()["jobs"]
    assert job["job"] == "train"
    (found,) = job["findings"]
    assert (found["code"], found["gpu"], found["basis"]) == ("cooling.hot_gpu", "5", "peers")


def test_findings_of_an_unknown_job_are_not_found(api: Starlette) -> None:
    check_problem(ask(api, "GET", f"{V1}/findings?job=other", uid=OWNER_UID), 404)
    assert ask(api, "GET", f"{V1}/findings", uid=STRANGER_UID).json() == {"jobs": []}


def test_the_memory_of_a_job_is_by_rank_with_its_framework(api: Starlette) -> None:
    (job,) = ask(api, "GET", f"{V1}/fsdp?job=train", uid=OWNER_UID).json()["jobs"]
    assert (job["job"], job["framework"], job["memory"]) == ("train", "fsdp2", [])
    check_problem(ask(api, "GET", f"{V1}/fsdp?job=other", uid=OWNER_UID), 404)
    assert ask(api, "GET", f"{V1}/fsdp", uid=STRANGER_UID).json() == {"jobs": []}


def test_two_jobs_are_compared_for_those_who_may_see_both(api: Starlette) -> None:
    """The job with itself: its steps are the same, and far too few to tell more."""
    answer = ask(api, "GET", f"{V1}/compare?a=train&b=train", uid=OWNER_UID).json()
    assert answer["schema"] == "chopperd.compare/1"
    (found,) = answer["comparisons"]
    assert (found["step"]["change"], found["step"]["verdict"]) == (0.0, "too_few")
    check_problem(ask(api, "GET", f"{V1}/compare?a=train&b=other", uid=OWNER_UID), 404)
    check_problem(ask(api, "GET", f"{V1}/compare?a=train&b=train", uid=STRANGER_UID), 404)
    check_problem(ask(api, "GET", f"{V1}/compare?a=train&allow=x", uid=OWNER_UID), 400)


JOB_URLS = [
    *("jobs", "steps", "traces", "report/latest", "findings", "fsdp", "jobs/train"),
    *("steps/4", "steps/4/kernels"),
]


@pytest.mark.parametrize("url", [*JOB_URLS, "traces/0123456789abcdef"])
def test_jobs_are_shown_to_their_owner_and_to_administrators(api: Starlette, url: str) -> None:
    check_problem(ask(api, "GET", f"{V1}/{url}"), 401)
    for uid in (OWNER_UID, ADMIN_UID, AGENT_UID, 0):
        answer = ask(api, "GET", f"{V1}/{url}", uid=uid)
        assert answer.is_success
        assert "train" in answer.text or "a.json" in answer.text or "parts" in answer.text
    assert ask(api, "GET", f"{V1}/{url}", headers=BEARER).is_success
    hidden = ask(api, "GET", f"{V1}/{url}", uid=STRANGER_UID)
    assert hidden.status_code in (200, 404)
    assert "train" not in hidden.text
    assert "a.json" not in hidden.text


@pytest.mark.parametrize("url", ["status", "gpus", "gpus/0", "gpus/0/samples", "pause"])
def test_figures_without_names_are_shown_to_anyone(api: Starlette, url: str) -> None:
    answer = ask(api, "GET", f"{V1}/{url}")
    assert answer.status_code == 200
    assert "train" not in answer.text


def test_only_administrators_pause(agent: FakeAgent, api: Starlette) -> None:
    unauthorized = ask(api, "POST", f"{V1}/pause")
    check_problem(unauthorized, 401)
    assert unauthorized.headers["www-authenticate"].startswith("Bearer")
    problem = check_problem(ask(api, "POST", f"{V1}/pause", uid=OWNER_UID), 403)
    assert "group chopperd" in str(problem["detail"])
    check_problem(ask(api, "DELETE", f"{V1}/pause", uid=OWNER_UID), 403)
    assert agent.snapshots.current.pause is None

    paused = ask(api, "POST", f"{V1}/pause?for=10m&reason=bench", uid=ADMIN_UID).json()
    assert paused == {
        "paused": True,
        "reason": "bench",
        "until_unix_ns": agent.clock.unix_ns() + 600 * 10**9,
    }
    assert ask(api, "GET", f"{V1}/pause").json() == paused
    assert ask(api, "DELETE", f"{V1}/pause", uid=ADMIN_UID).status_code == 204
    assert ask(api, "GET", f"{V1}/pause").json()["paused"] is False


def test_metrics_go_by_the_accept_header(agent: FakeAgent, api: Starlette) -> None:
    wanted = "application/openmetrics-text;version=1.0.0"
    answer = ask(api, "GET", "/metrics", headers={"accept": wanted})
    assert answer.text == "# no metrics\n"
    assert agent.accepted == [wanted]


@pytest.mark.parametrize("build", [build_api, build_metrics])
def test_old_values_are_not_passed_off_as_fresh(
    agent: FakeAgent, build: Callable[[ApiServices], Starlette]
) -> None:
    app = build(agent.services())
    for age_s, ready, metrics in ((4, 200, 200), (6, 503, 200), (11, 503, 503)):
        agent.snapshots.renew()
        agent.clock.advance(age_s * 10**9)
        assert ask(app, "GET", "/readyz").status_code == ready
        assert ask(app, "GET", "/metrics").status_code == metrics
        assert ask(app, "GET", "/healthz").status_code == 200


def test_it_is_not_ready_without_a_fresh_gpu(agent: FakeAgent, api: Starlette) -> None:
    agent.snapshots.current = replace(agent.snapshots.current, backend_up=False)
    problem = check_problem(ask(api, "GET", "/readyz"), 503)
    assert problem["detail"] == "no GPU has a fresh sample: sampling is running"


def test_trouble_of_the_agent_is_ill_health(agent: FakeAgent, api: Starlette) -> None:
    agent.health.why = "the loop stalls"
    assert check_problem(ask(api, "GET", "/healthz"), 503)["detail"] == "the loop stalls"


def test_an_unexpected_error_is_counted_and_tells_nothing(
    agent: FakeAgent, api: Starlette, caplog: pytest.LogCaptureFixture
) -> None:
    agent.steps.error = RuntimeError("secret path")
    answer = ask(api, "GET", f"{V1}/jobs", uid=0)
    assert "secret" not in str(check_problem(answer, 500))
    assert agent.failures == [f"{V1}/jobs"]
    assert "secret path" in caplog.text


def test_what_does_not_exist_is_a_problem_too(api: Starlette) -> None:
    check_problem(ask(api, "GET", "/page"), 404)
    check_problem(ask(api, "GET", f"{V1}/status/"), 404)
    answer = ask(api, "PUT", f"{V1}/pause")
    check_problem(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST", "DELETE"}
    check_problem(ask(api, "GET", f"{V1}/gpus/" + "x" * 5000), 414)


def test_head_is_answered_like_get(api: Starlette) -> None:
    for url in (f"{V1}/status", "/metrics", "/healthz", f"{V1}/stream"):
        assert ask(api, "HEAD", url).status_code == 200


def test_a_caller_is_told_who_it_is(api: Starlette) -> None:
    def said(uid: int | None, **headers: str) -> object:
        return ask(api, "GET", f"{V1}/viewer", uid=uid, headers=headers).json()

    assert said(None) == {"known": False, "uid": None, "is_admin": False}
    assert said(OWNER_UID) == {"known": True, "uid": OWNER_UID, "is_admin": False}
    assert said(0) == {"known": True, "uid": 0, "is_admin": True}
    assert said(None, **BEARER) == {"known": True, "uid": None, "is_admin": True}
    wrong = ask(api, "GET", f"{V1}/viewer", headers={"authorization": "Bearer wrong"})
    check_problem(wrong, 401)


def test_the_report_of_a_capture_is_found_by_its_id(api: Starlette) -> None:
    url = f"{V1}/report/latest?capture="
    assert ask(api, "GET", f"{url}{CAPTURE}", uid=OWNER_UID).status_code == 200
    check_problem(ask(api, "GET", f"{url}{CAPTURE + 1}", uid=OWNER_UID), 404)
    check_problem(ask(api, "GET", f"{url}{CAPTURE}", uid=STRANGER_UID), 404)
    check_problem(ask(api, "GET", f"{url}x", uid=OWNER_UID), 400)


def test_the_live_page_runs_its_own_files_only(api: Starlette) -> None:
    page = ask(api, "GET", "/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self';")
    named = re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text)
    scripts = [ask(api, "GET", name) for name in named if name.endswith(".js")]
    assert scripts
    imported = {f"/page/{name}" for each in scripts for name in _imports(each.text)}
    for name in {*named, *imported}:
        answer = ask(api, "GET", name)
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == policy
    check_problem(ask(api, "GET", "/page/index.html"), 400)


def _imports(script: str) -> list[str]:
    return re.findall(r'from "\./([^"]+)"', script)


def test_words_and_colours_of_the_page_are_those_of_the_palette(api: Starlette) -> None:
    css = ask(api, "GET", "/page/palette.css").text
    light, dark = css.split("@media")
    for key, mark in {**palette.ROWS, **palette.CAUSES}.items():
        if mark.texture != "hatch" and key != "compute_at_ref":
            assert f"--{key}:{mark.colour};" in light
            assert f"--{key}:{mark.colour};" in dark
    assert f"--compute_at_ref:{palette.COMPUTE_DARK};" in dark
    assert f"--unknown:{palette.UNKNOWN_LIGHT};" in light
    script = ask(api, "GET", "/page/palette.js").text
    rows, causes = (json.loads(line.partition(" = ")[2][:-1]) for line in script.splitlines())
    assert list(rows) == list(palette.ROWS)
    assert {key: each["words"] for key, each in causes.items()} == {
        key: mark.words for key, mark in palette.CAUSES.items()
    }


def test_the_page_needs_no_other_host(api: Starlette) -> None:
    page = ask(api, "GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "://" not in page.text
    for name in ("docs.js", "swagger-ui-bundle.js", "swagger-ui.css", "LICENSE"):
        assert ask(api, "GET", f"/docs/{name}").status_code == 200
    check_problem(ask(api, "GET", "/docs/..%2fapp.py"), 404)
    check_problem(ask(api, "GET", "/docs/app.py"), 400)


def test_answers_are_neither_cached_nor_guessed_at(api: Starlette) -> None:
    headers = ask(api, "GET", f"{V1}/status").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_a_stream_gives_new_snapshots_and_ends_with_the_agent(agent: FakeAgent) -> None:
    async def go() -> str:
        stopping = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, stopping.set)
        async with client(build_api(agent.services()), stopping=stopping) as asking:
            return (await asking.get(f"{V1}/stream")).text

    events = asyncio.run(go()).split("\n\n")
    kind, data = events[0].split("\n")
    assert kind == "event: snapshot"
    assert [each["gpu"] for each in json.loads(data.removeprefix("data: "))["gpus"]] == ["0", "1"]
    assert events[1:] == ["event: end\ndata: {}", ""]
