#!/bin/sh
# Installs the build and uses it as a stranger would: installed.sh SOURCE BUILD VERSION
set -eu
source=$1 build=$2 version=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix="$scratch/moved here" # a package may be moved after it was installed, to a place with a space

cmake --install "$build" --component development --prefix "$scratch/prefix" > "$scratch/log"
mv "$scratch/prefix" "$prefix"
test "$(readlink "$prefix/lib/liblaneway.so" || readlink "$prefix"/lib/*/liblaneway.so)" = "$(basename "$(find "$prefix" -name 'liblaneway.so.[0-9]*')")"

configure() { cmake -S "$source/ctests/installed" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLES="$source/examples" -DLANEWAY_VERSION="$1"; }
if configure 99.0 > "$scratch/log" 2>&1; then
    echo "find_package(laneway 99.0) was content with $version"
    exit 1
fi
rm -rf "$scratch/build"
{ configure "$version" && cmake --build "$scratch/build"; } > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
for program in shared_c static_cpp; do
    LANEWAY_BIN="$prefix/bin/laneway" sh "$source/scripts/in_private_dir.sh" "$scratch/build/$program"
done

if command -v pkg-config > /dev/null; then
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name laneway.pc)")
    export PKG_CONFIG_PATH
    test "$(pkg-config --modversion laneway)" = "$version"
    # pkg-config escapes the space in the folder's name, which the shell must read.
    eval "cc '$source/examples/c/distill_min.c' $(pkg-config --cflags --libs laneway) -lpthread -o '$scratch/by_pkg_config'"
    LD_LIBRARY_PATH="$PKG_CONFIG_PATH/.." LANEWAY_BIN="$prefix/bin/laneway" sh "$source/scripts/in_private_dir.sh" "$scratch/by_pkg_config"
elif [ -n "${CI:-}" ]; then
    echo "pkg-config is missing"
    exit 1
else
    echo "SKIPPED: laneway.pc was not tried, pkg-config is missing"
fi
"$prefix/bin/laneway" --version | grep -F "$version"
