"""`chopperd devices` as text and as data."""

import msgspec

from bench.gpu.part import Options, main, output_of


class DevicesFailedError(Exception):
    """`chopperd devices` listed nothing."""


def measure(_options: Options) -> tuple[str, object]:
    """Ask twice, once in each form."""
    text, data = (_listed(form) for form in ("text", "json"))
    return f"```\n{text.rstrip()}\n```", msgspec.json.decode(data)


def _listed(form: str) -> str:
    command = ("-P", "-m", "chopperd", "devices", "--backend", "nvml", "--format", form)
    status, printed = output_of(command)
    if status:
        raise DevicesFailedError(f"exit status {status}")
    return printed


if __name__ == "__main__":
    main(measure)
