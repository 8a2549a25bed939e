#!/bin/sh
# run.sh [SECONDS]: builds every fuzz target in build-fuzz and runs each for SECONDS (5). Findings stay in
# build-fuzz/findings; the corpus grows in build-fuzz/corpus.
set -eu
seconds=${1:-5}
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${TLUA_FUZZ_BUILD:-$source/build-fuzz}

if ! command -v clang >/dev/null; then
  echo "fuzz: clang is not installed" >&2
  exit 77
fi
launcher=
if command -v ccache >/dev/null; then launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache; fi
cmake -S "$source" -B "$build" -G Ninja -DTLUA_FUZZ=ON -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DTLUA_ISAS=v3 $launcher >/dev/null
ninja -C "$build" >/dev/null || ninja -C "$build"

mkdir -p "$build/seeds" "$build/corpus" "$build/findings"
"$build/tests/fuzz/seeds" "$build/seeds"
failed=0
for target in "$build"/tests/fuzz/fuzz_*; do
  if [ ! -f "$target" ] || [ ! -x "$target" ]; then continue; fi
  name=${target##*/fuzz_}
  mkdir -p "$build/corpus/$name"
  for seed in "$build/seeds/$name"-*; do cp "$seed" "$build/corpus/$name/"; done
  if "$target" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$name-" "$build/corpus/$name" >"$build/findings/$name.log" 2>&1; then
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/findings/$name.log") inputs, nothing found"
  else
    echo "fuzz_$name: FAILED, see $build/findings/$name.log" >&2
    grep -m1 -E 'ERROR|SUMMARY|deadly signal' "$build/findings/$name.log" >&2 || true
    failed=1
  fi
done
exit $failed
