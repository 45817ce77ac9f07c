#!/bin/sh
# Runs a command with a folder for brokers and a cache of its own: in_private_dir.sh COMMAND...
set -eu
LANEWAY_DIR=$(mktemp -d /tmp/laneway-XXXXXX)
export LANEWAY_DIR LANEWAY_CACHE="$LANEWAY_DIR/cache"
trap 'rm -rf "$LANEWAY_DIR"' EXIT
"$@"
