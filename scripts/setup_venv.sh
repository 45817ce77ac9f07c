#!/usr/bin/env bash
# Makes the Python environment that the demo, the tests and the benchmarks run in.
#
#   scripts/setup_venv.sh        a second run with nothing to do takes a moment
#
# LANEWAY_VENV    where it goes (default: .venv beside this folder)
# LANEWAY_PYTHON  the Python to build it from (default: python3.11). If that Python
#                 can import torch, its torch is used and none is installed.
#
# Every package is pinned in requirements/ with all that it depends on, and installed
# without dependency resolution, because torch from PyPI would otherwise bring 2.5 GB of
# CUDA wheels. Where those libraries are absent, torch_cpu_stubs.py makes stand-ins.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${LANEWAY_VENV:-$root/.venv}
python=${LANEWAY_PYTHON:-python3.11}
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

command -v "$python" >/dev/null || fail "no $python on the PATH: install Python 3.11 or later, or set LANEWAY_PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is $("$python" -V 2>&1): Python 3.11 or later is needed"

# What the environment depends on; when none of it changed there is nothing to do.
stamp=$(
    cd "$root"
    { cat requirements/*.txt scripts/setup_venv.sh scripts/torch_cpu_stubs.py
      "$python" -c 'import sys; print(sys.version, sys.prefix)'; } | sha256sum | cut -d' ' -f1
)
if [ "$(cat "$venv/laneway.stamp" 2>/dev/null)" = "$stamp" ]; then
    say "$venv is ready"
    exit 0
fi

# Two runs at once (make -j, a second terminal) wait for each other.
mkdir -p "$venv"
exec 9>"$venv/laneway.lock"
flock 9
if [ "$(cat "$venv/laneway.stamp" 2>/dev/null)" = "$stamp" ]; then
    say "$venv was made ready by another run"
    exit 0
fi

install() {
    local files=()
    for name in "$@"; do files+=(-r "$root/requirements/$name.txt"); done
    say "installing $*"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${files[@]}"
}
imports_torch() { "$1" -c 'import torch' >/dev/null 2>&1; }

say "making $venv from $("$python" -V 2>&1) (the first time downloads about 700 MB)"
rm -f "$venv/laneway.stamp"
"$python" -m venv "$venv" || fail "$python cannot make an environment; on Debian: apt install python3-venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

if imports_torch "$python"; then
    their_site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
    say "using torch $("$python" -c 'import torch; print(torch.__version__)') from $their_site"
    # On the path after the environment's own packages, so the pins below still win.
    echo "$their_site" >"$site/zz_torch_of_laneway_python.pth"
else
    rm -f "$site/zz_torch_of_laneway_python.pth"
    install torch
fi
install run teacher test build bench
if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then install cmake; fi

if [ -e "$site/torch/lib/STAND_INS.txt" ] || ! imports_torch "$venv/bin/python"; then
    say "CUDA's libraries are absent here: torch gets stand-ins"
    "$venv/bin/python" "$root/scripts/torch_cpu_stubs.py" "$site/torch"
    "$venv/bin/python" -c 'import torch' || fail "torch still does not import from $site/torch: see the error above"
fi
echo "$stamp" >"$venv/laneway.stamp"
say "$venv is ready: torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)'), GPUs: $("$venv/bin/python" -c 'import torch; print(torch.cuda.device_count())')"
