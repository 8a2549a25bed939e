#!/usr/bin/env bash
# test.sh BUILD_DIR CC: installs into a fresh prefix, moves the prefix, and builds and runs C programs and a Lua
# script against what is there.
set -euo pipefail
build=$1 cc=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
pc=$(find "$work/prefix" -name tlua.pc)
export PKG_CONFIG_PATH=${pc%/*}

cp "$here/program.c" "$work"
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$here/../../docs/c-api.md" >"$work/page.c"
cd "$work"
read -ra flags < <(pkg-config --cflags --libs tlua)
flags+=("-Wl,-rpath,$(pkg-config --variable=libdir tlua)")
for name in program page; do "$cc" -std=c11 -Wall -Wextra -Werror "$name.c" -o "$name" "${flags[@]}"; done

expect() { # WHAT EXPECTED GOT
  [ "$2" = "$3" ] || { printf '%s: expected "%s", got "%s"\n' "$1" "$2" "$3" >&2; exit 1; }
}
expect "the C program" "y 0 0 1 3, dy/dx 0 0 2 2" "$(./program)"
expect "the program of docs/c-api.md" "2 4 6" "$(./page)"
expect "the version" "$(pkg-config --modversion tlua)" "$(prefix/bin/tlua -v | sed -n 's/^tlua \([^ ]*\).*/\1/p')"
expect "a script" "4" "$(prefix/bin/tlua -e 'print((tl.ones(2) * 2):sum():item())')"

# tlua inside a program: examples/embed.c by find_package and by pkg-config.
cmake -S "$here/../../examples" -B "$work/embed" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >/dev/null
cmake --build "$work/embed" >/dev/null
read -ra flags < <(pkg-config --cflags --libs tlua-host)
flags+=("-Wl,-rpath,$(pkg-config --variable=libdir tlua)")
for name in ../../examples/embed host; do
  "$cc" -std=gnu11 -Wall -Wextra -Werror "$here/$name.c" -o "${name##*/}-pc" "${flags[@]}"
done
expect "the game of examples/embed.c" "5" "$(embed/embed 50 | grep -c caught)"
expect "the same by pkg-config" "$(embed/embed 50)" "$(./embed-pc 50)"
./host-pc
# Its memory. valgrind knows no AVX-512: where the build has no other kernels this is left out.
lowest=$(TLUA_ISA=v2 prefix/bin/tlua -e 'print(tl.cpu_kernel_set())')
if command -v valgrind >/dev/null && [ "$lowest" != x86-64-v4 ]; then
  TLUA_ISA=v2 valgrind -q --smc-check=all-non-file --leak-check=full --errors-for-leak-kinds=definite --error-exitcode=9 \
    ./host-pc >/dev/null
fi
