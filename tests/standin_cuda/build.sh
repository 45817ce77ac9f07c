#!/bin/sh
# Builds the stand-in driver (libcuda.c) if it is older than its source, and prints the folder to put into LD_LIBRARY_PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../../target}/standin_cuda
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ ! "$out/libcuda.so.1" -nt "$here/libcuda.c" ]; then
    # Made aside and moved, since tests run at the same time.
    made=$(mktemp "$out/made.XXXXXX")
    ${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$made" "$here/libcuda.c" -lpthread
    chmod 755 "$made"
    mv "$made" "$out/libcuda.so.1"
fi
echo "$out"
