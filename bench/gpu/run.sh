#!/bin/bash
# Measures chopperd on one NVIDIA GPU, in less than five minutes; bench/gpu/README.md says how.
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
# The sampler's C part is built in a copy: the checkout may be read-only. Without it, it samples in
# Python, which the figures of `sampling` show and the line below says.
mkdir -p "$work/tree/bench" && cp -r "$root"/{chopperd,tests,docs,pyproject.toml,README.md,LICENSE} \
  "$work/tree/" && cp -r "$root"/bench/{*.py,gpu} "$work/tree/bench/" || exit 1
chmod -R u+w "$work/tree"
export PYTHONPATH=$work/tree${PYTHONPATH#"$root"}
cd "$work/tree" || exit 1
"$python" -c 'from setuptools import setup; setup()' -q build_ext --inplace \
  > "$work/build.log" 2>&1
if ls chopperd/sampling/native/_native*.so > /dev/null 2>&1
then echo "the sampler's C part is built"
else echo "the sampler's C part could not be built, it samples in Python:"; tail -n 5 "$work/build.log"
fi
cd "$work" || exit 1
"$python" -m bench.gpu.suite --out "$out" "$@"
