#!/bin/sh
# Runs a command with a broker's folder of its own: in_private_dir.sh COMMAND...
set -eu
LANEWAY_DIR=$(mktemp -d /tmp/laneway-XXXXXX)
export LANEWAY_DIR
trap 'rm -rf "$LANEWAY_DIR"' EXIT
"$@"
