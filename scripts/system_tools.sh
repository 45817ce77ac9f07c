#!/bin/sh
# Installs the system's tools that the tests need beside a C and C++ compiler, where this user may; else says which are missing.
set -eu
missing=
for pair in cmake:cmake ninja:ninja-build valgrind:valgrind abidiff:abigail-tools strace:strace pkg-config:pkg-config; do
    command -v "${pair%%:*}" > /dev/null || missing="$missing ${pair##*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "setup: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    apt-get install -y -qq --no-install-recommends $missing > /dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing > /dev/null; } ||
        echo "setup: apt-get could not install$missing; tests that need them are skipped"
else
    echo "setup: missing:$missing (Debian's names); tests that need them are skipped"
fi
