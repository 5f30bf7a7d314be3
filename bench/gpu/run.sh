#!/bin/bash
# Measures chopperd on one NVIDIA GPU, in less than four minutes; bench/gpu/README.md says how.
# No setting of the GPU is read to be changed, changed, or reset.
#
#   OUT=DIR      where the results go (default: bench/gpu/results)
#   PYTHON=EXE   a Python 3.11 or later that has torch (default: python3)
#   WHEELS=DIR   wheels to use beside its packages, as nothing is fetched
#   --cpu        dry: tiny, on the CPU and the fake driver; what it writes is no measurement
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
case $python in ./* | ../* | [!/]*/*) python=$PWD/$python ;; esac
out=$(realpath -m "${OUT:-$root/bench/gpu/results}")
work=$(mktemp -d -t chopperd-gpu-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TMPDIR=$work
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if test -n "${WHEELS:-}"; then
  "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile \
    --no-cache-dir --target "$work/site" "$WHEELS"/*.whl || exit 1
  export PYTHONPATH=$PYTHONPATH:$work/site
fi
cd "$work" || exit 1
"$python" -m bench.gpu.suite --out "$out" "$@"
