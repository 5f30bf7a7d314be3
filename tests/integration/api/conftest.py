"""An agent with a little to tell, and the API over it."""

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette

from chopperd.api.app import build_api
from chopperd.model.captures import DeviceKernels
from tests.fakes.api_services import FakeAgent, step_row, trace_entry
from tests.fakes.samples import recording
from tests.unit.report.documents import eight_gpus, host_timed


@pytest.fixture
def agent() -> FakeAgent:
    agent = FakeAgent()
    agent.steps.rows = [step_row(4), step_row(3), step_row(3, job="other", run=None)]
    agent.steps.document = replace(eight_gpus(), host=host_timed().host)
    agent.steps.entries = [trace_entry("0123456789abcdef")]
    totals = eight_gpus().totals
    agent.steps.device_kernels = [
        DeviceKernels(
            job="train",
            run="r1",
            rank=0,
            device=0,
            gpu="0",
            families=totals[0].families,
            by_operation=totals[0].by_operation,
            by_layer=totals[0].by_layer,
            by_phase=totals[0].by_phase,
            by_annotation=totals[0].by_annotation,
        )
    ]
    agent.samples.held = recording(2)
    return agent


@pytest.fixture
def api(agent: FakeAgent) -> Starlette:
    return build_api(agent.services())
