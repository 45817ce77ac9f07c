#!/bin/sh
# Compares the binary interface that include/laneway.h describes with the one checked in as abi/laneway.xml.
#
#   abi.sh check [HEADER]     fails if anything but new functions differs
#   abi.sh bless              writes abi/laneway.xml anew; refuses what `check` refuses unless LW_ABI_VERSION was raised
#   abi.sh bless --appended   the same, but takes your word that fields were only appended to structs that begin with struct_size
#
# The interface is read from the header, not from the Rust library: there, what is behind opaque pointers would count as well. That the library
# has exactly the header's functions is tests/exports.rs's business, and that the header is the source's tests/header.rs's.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-check} header=include/laneway.h baseline=abi/laneway.xml appended=
case ${2:-} in
--appended) appended="--suppressions abi/appended.suppr" ;;
?*) header=$2 ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

version_in() { sed -n "s/$2/\\1/p" "$1" | head -n 1; }
new=$(version_in "$header" '^#define LW_ABI_VERSION \([0-9]*\)$')
old=; [ ! -e "$baseline" ] || old=$(version_in "$baseline" ".*soname='liblaneway.so.\([0-9]*\)'.*")

# A library of the header's functions, all empty, whose debugging information has all of its types.
python3 - "$header" > "$scratch/stub.c" <<'PYTHON'
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
print(f'#include "{sys.argv[1]}"\n#include <stdlib.h>')
plain = re.sub(r"//[^\n]*|/\*.*?\*/|^#[^\n]*", "", text, flags=re.S | re.M).replace("LW_MUST_USE", "")
functions = re.findall(r"^\s*((?:const )?\w+ \*?lw_\w+\([^;{}]*\));", plain, re.M)
for prototype in functions:
    print(prototype, "{ abort(); }")
sys.exit(0 if len(functions) >= 60 else f"only {len(functions)} functions were found in {sys.argv[1]}")
PYTHON
cc -std=c11 -g -O0 -w -shared -fPIC -I"$(dirname "$header")" -I. -Wl,-soname,"liblaneway.so.$new" -o "$scratch/liblaneway.so" "$scratch/stub.c"
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed "$scratch/liblaneway.so" > "$scratch/new.xml"

same=yes
[ ! -e "$baseline" ] || abidiff --no-added-syms $appended "$baseline" "$scratch/new.xml" > "$scratch/diff" 2>&1 || same=no

if [ "$same" = no ] && [ "$new" = "$old" ]; then
    cat "$scratch/diff"
    echo "$header differs from version $old of the binary interface: a program that was compiled with that may break. Either undo the change;"
    echo "or, if fields were only appended to structs that begin with struct_size: scripts/abi.sh bless --appended;"
    echo "or raise LW_ABI_VERSION in src/capi/version.rs, say so in CHANGELOG.md, and run: make header && scripts/abi.sh bless."
    exit 1
fi
if [ "$mode" = bless ]; then
    mkdir -p abi
    cp "$scratch/new.xml" "$baseline"
elif [ "$same" = no ]; then
    echo "LW_ABI_VERSION was raised to $new, but $baseline is of version $old: run scripts/abi.sh bless."
    exit 1
fi
