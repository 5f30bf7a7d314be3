#!/usr/bin/env bash
# Build wheels for Linux x86_64 and aarch64 (glibc 2.17 or later, any Python from 3.11) into dist/,
# and check them: the symbols they need, and a report on this machine without a compiler. Zig is the
# cross compiler, as a package from PyPI. The aarch64 wheel is not run here.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/tools"
"$work/tools/bin/pip" install -q --disable-pip-version-check 'ziglang==0.17.1' 'setuptools>=77' wheel
mkdir "$work/source"
(cd "$root" && cp -r chopperd pyproject.toml README.md LICENSE "$work/source")
find "$work/source" -name '*.so' -delete

for arch in x86_64 aarch64; do
  compiler="$work/cc-$arch"
  printf '#!/bin/sh\nexec "%s" -m ziglang cc -target %s-linux-gnu.2.17 "$@"\n' \
    "$work/tools/bin/python" "$arch" > "$compiler"
  chmod +x "$compiler"
  rm -rf "$work/source/build"
  CC=$compiler LDSHARED="$compiler -shared -s" _PYTHON_HOST_PLATFORM=linux-$arch \
    "$work/tools/bin/pip" wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings=--build-option=--plat-name=manylinux_2_17_$arch \
    --config-settings=--build-option=--py-limited-api=cp311 -w "$root/dist" "$work/source"
done

for wheel in "$root"/dist/*manylinux_2_17_*.whl; do
  rm -rf "$work/unpacked" && mkdir "$work/unpacked"
  python3 -m zipfile -e "$wheel" "$work/unpacked"
  mapfile -t libraries < <(find "$work/unpacked" -name '*.abi3.so')
  if ((${#libraries[@]} != 2)); then
    echo "$wheel: holds ${#libraries[@]} native libraries, not 2" >&2
    exit 1
  fi
  newest=$(readelf -V "${libraries[@]}" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
  if [[ $(printf '%s\nGLIBC_2.17\n' "$newest" | sort -V | tail -1) != GLIBC_2.17 ]]; then
    echo "$wheel: needs $newest" >&2
    exit 1
  fi
  echo "$(basename "$wheel"): needs $newest"
done

python3 -m venv "$work/user"
"$work/user/bin/pip" install -q --disable-pip-version-check "$root"/dist/*_x86_64.whl
(cd "$work" && PATH="$work/user/bin" "$work/user/bin/python" -c '
from chopperd.sampling.native.library import native_library
from chopperd.traces.native.scanner import scanner_library
assert native_library() and scanner_library(), "the native libraries do not load"
')
(cd "$work" && "$work/user/bin/chopperd" demo --no-stay --seconds 2 > /dev/null)
echo "the x86_64 wheel loads its libraries and runs the demo without a compiler"
