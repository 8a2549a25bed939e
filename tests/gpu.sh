#!/usr/bin/env bash
# gpu.sh [--build FOLDER] [OUT.json]: all that needs a real GPU, in under 8 minutes: builds the CUDA plug-in with nvcc for
# the GPU that is here, runs the C and the Lua suite on it, trains the example on GPU and CPU, then takes the benchmark:
# training steps of a CNN and of a 2048-wide MLP in float32, TF32 and float16, a replayed graph, the allocator; against
# PyTorch on the same GPU, if TLUA_PYTHON (or python3) has it. Writes one JSON object (default gpu.json in the build folder).
#
# --build FOLDER uses a build that is there and compiles nothing. TLUA_PREFIX names a folder where Debian's packages
# of scripts/setup --tests were unpacked by `dpkg -x`, on a machine where they cannot be installed.
# Exit status: 0, 1 if anything failed, 77 without a GPU (or without nvcc and --build).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=
if [ "${1:-}" = --build ]; then
  build=$(realpath "$2") || exit 1
  shift 2
fi

skip() { echo "gpu.sh: $*: nothing was tested"; exit 77; }

gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -1)
[ -n "$gpu" ] || skip "there is no NVIDIA GPU here (nvidia-smi names none)"
IFS=, read -r name capability driver memory <<<"$gpu"
capability=${capability// /}

# ---- packages that lie in a folder of their own ----

if [ -n "${TLUA_PREFIX:-}" ]; then
  usr=$(realpath "$TLUA_PREFIX")/usr
  libraries=$usr/lib/$(uname -m)-linux-gnu
  export PATH=$usr/bin:$PATH CMAKE_PREFIX_PATH=$usr LD_LIBRARY_PATH=$libraries:${LD_LIBRARY_PATH:-}
  export LIBRARY_PATH=$libraries CPATH=$usr/include
  export LUA_PATH="$usr/share/lua/5.1/?.lua;$usr/share/lua/5.1/?/init.lua;;" LUA_CPATH="$libraries/lua/5.1/?.so;;"
  # Their .pc files say /usr.
  described=$(mktemp -d)
  trap 'rm -rf "$described"' EXIT
  for file in "$libraries"/pkgconfig/*.pc "$usr"/{lib,share}/pkgconfig/*.pc; do
    [ ! -e "$file" ] || sed "s|^\([a-z_]*=\)/usr|\1$usr|" "$file" >"$described/${file##*/}"
  done
  export PKG_CONFIG_PATH=$described:${PKG_CONFIG_PATH:-}
fi

# ---- build ----

export PATH=$PATH:/usr/local/cuda/bin
begin=$SECONDS
if [ -z "$build" ]; then
  build=$PWD/build-gpu
  command -v nvcc >/dev/null || [ -x "$build/cuda/bin/nvcc" ] || skip "there is no nvcc here"
  generator=()
  if command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S . -B "$build" "${generator[@]}" -DTLUA_ISAS=v3 -DTLUA_CUDA_ARCHS="${capability/./}" -DBUILD_TESTING=ON \
    >/dev/null && cmake --build "$build" --parallel "$(nproc)" || { echo "gpu.sh: the build failed" >&2; exit 1; }
fi
[ -e "$build/libtlua-cuda.so" ] || { echo "gpu.sh: $build has no libtlua-cuda.so" >&2; exit 1; }
out=${1:-$build/gpu.json}
tlua=$build/tlua
build_seconds=$((SECONDS - begin))

# ---- tests ----

unset TLUA_CUDA
export TLUA_TEST_DEVICE=cuda OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2
logs=$build/gpu-logs
mkdir -p "$logs"
failed=()
passed=0

report() { # NAME STATUS
  if [ "$2" = 0 ]; then passed=$((passed + 1)); else
    failed+=("$1")
    echo "FAILED $1 (status $2)"
    tail -n 40 "$logs/$1"
  fi
}

# A process of its own for each test would spend most of the time on opening the device; test_tape leaves tensors behind.
one() {
  if [ "$1" != test_tape ]; then export CK_FORK=no; fi
  cd "$logs" && timeout 120 "$build/tests/$1" >"$1" 2>&1
  echo "$1 $?" >>"$logs/statuses"
}
export -f one
export build logs
begin=$SECONDS
: >"$logs/statuses"
find "$build/tests" -maxdepth 1 -name 'test_*' -type f -executable -printf '%f\n' | sort |
  xargs -P 6 -I{} bash -c 'one {}'
while read -r test status; do report "$test" "$status"; done <"$logs/statuses"
c_seconds=$((SECONDS - begin))

begin=$SECONDS
timeout 150 "$tlua" tests/lua/run.lua --device cuda >"$logs/lua" 2>&1
report lua $?
lua_counts=$(grep -E '^[0-9]+ success' "$logs/lua")
timeout 60 tests/cuda/fashion.sh "$tlua" >"$logs/fashion" 2>&1
status=$?
[ $status = 77 ] || report fashion $status
lua_seconds=$((SECONDS - begin))

# ---- benchmark ----

begin=$SECONDS
python=${TLUA_PYTHON:-python3}
records=
compared=
if $python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  compared=$(timeout 150 "$tlua" bench --device cuda --vs-torch --python "$python" --rounds 1 --seconds 0.5 --json 2>"$logs/bench")
else
  records=$(timeout 90 "$tlua" bench --device cuda --seconds 0.5 --json 2>"$logs/bench")
fi
report bench $?
summary=$("$tlua" -e 'local x = tl.ones(1000, 1000, {device = "cuda"})
  for _ = 1, 1000 do x = x + 1 end
  print(tl.cuda.memory_summary())' 2>>"$logs/bench")
report allocator $?
bench_seconds=$((SECONDS - begin))

# ---- the record ----

quoted() { printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }')"; }
joined() { paste -sd, <<<"$1"; }
names=
for test in ${failed[@]+"${failed[@]}"}; do names+=${names:+, }$(quoted "$test"); done
{
  echo '{'
  echo "  \"gpu\": $(quoted "$name"), \"compute_capability\": $(quoted "$capability"), \"memory\": $(quoted "${memory# }"),"
  echo "  \"driver\": $(quoted "${driver# }"), \"version\": $(quoted "$("$tlua" -v 2>&1 | head -1)"),"
  echo "  \"seconds\": {\"build\": $build_seconds, \"c\": $c_seconds, \"lua\": $lua_seconds, \"bench\": $bench_seconds},"
  echo "  \"passed\": $passed, \"failed\": [$names], \"lua\": $(quoted "$lua_counts"),"
  echo "  \"bench\": [$(joined "$records")],"
  echo "  \"against_pytorch\": [$(joined "$compared")],"
  echo "  \"allocator\": $(quoted "$summary")"
  echo '}'
} >"$out"
echo "$passed passed, ${#failed[@]} failed"
echo "gpu.sh: $SECONDS s, written to $out"
[ ${#failed[@]} = 0 ]
