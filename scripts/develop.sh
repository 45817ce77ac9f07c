#!/bin/sh
# Makes .venv use this checkout: the Python package from bindings/python, the `laneway` program from target/release.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${LANEWAY_VENV:-$root/.venv}
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$root/bindings/python" > "$site/laneway_checkout.pth"
ln -sf "$root/target/release/laneway" "$venv/bin/laneway"
