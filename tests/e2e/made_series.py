"""Series that a simulated agent does not export, served for Prometheus to scrape.

Of the agent's own GPUs: metrics that only later agents have, or other GPUs. Of a
second node, `made`: states that a simulation does not get into, as a call that hangs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import time
from typing import Final

GPUS: Final = 8
NODE: Final = "made"

#: Of each GPU of the agent: value, and growth a second.
OF_GPUS: Final = {
    'workload_info{workload="train", rank="%d"}': (1, 0),
    "steps_total": (10, 2),
    "step_seconds_total": (5, 1),
    "step_tokens_total": (1e4, 2e3),
    "traced_last_rank_total": (3, 0),
    "traced_wait_caused_seconds_total": (0.5, 0),
    "gpu_temperature_slowdown_celsius": (95, 0),
    "gpu_xcd_clock_spread_hertz": (12e6, 0),
}
#: Of the node `made`.
OF_NODE: Final = {
    'gpu_up{gpu="0"}': (0, 0),
    'gpu_power_limit_watts{gpu="0"}': (600, 0),
    'gpu_power_limit_default_watts{gpu="0"}': (700, 0),
    'gpu_clock_drops_total{gpu="0"}': (0, 1),
    'agent_driver_call_hung_seconds{gpu="0", call="fast"}': (47, 1),
    "agent_step_time_ratio": (1.001, 0),
    'agent_step_time_bound_ratio{bound="low"}': (0.999, 0),
    'agent_step_time_bound_ratio{bound="high"}': (1.003, 0),
    'agent_trouble{part="store"}': (1, 0),
    'agent_faults_total{part="store"}': (0, 1),
    "agent_paused": (1, 0),
    "agent_restarts_total": (0, 1),
}


@contextmanager
def served(instance: str) -> Iterator[str]:
    """Where they are scraped; the GPUs are those of the node `instance`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(_text(instance, time() - start).encode())

        def log_message(self, *_: object) -> None:
            pass

    start = time()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, name="made-series")
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _text(instance: str, age_s: float) -> str:
    lines = [
        _line(name.replace("%d", str(gpu)), f'instance="{instance}", gpu="{gpu}"', value, age_s)
        for gpu in range(GPUS)
        for name, value in OF_GPUS.items()
    ]
    lines += [_line(name, f'instance="{NODE}"', value, age_s) for name, value in OF_NODE.items()]
    return "\n".join([*lines, ""])


def _line(series: str, labels: str, value: tuple[float, float], age_s: float) -> str:
    name, _, own = series.partition("{")
    start, growth = value
    return f"chopperd_{name}{{{labels}, {own or '}'} {start + growth * age_s}"
