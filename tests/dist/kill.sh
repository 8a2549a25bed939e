#!/bin/bash
# kill.sh TLUA [COUNT] [cpu|cuda] [RANKS]: kills a random rank (-9) at a random moment of a random step, COUNT times, and
# checks each time: the others end at once, no process stays, and the restart reaches the loss of a run without a fault.
set -u
program=${1:?kill.sh TLUA [COUNT] [cpu|cuda] [RANKS]} count=${2:-2} device=${3:-cpu} ranks=${4:-3}
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ "$device" = cuda ]; then export TLUA_CUDA=sim TLUA_TEST_DEVICE=cuda TLUA_SIM_DEVICES=4; fi
steps=40

train() { timeout 100 "$program" --ranks "$ranks" --restarts 1 "$here/train.lua" "$folder/run" "$steps" "$@" 2>&1; }
fail() {
  printf 'kill.sh: %s\n%s\n' "$1" "$text"
  exit 1
}

rm -f "$folder"/*
text=$(train)
expected=$(grep '^final ' <<<"$text") || fail "the run without a fault did not end"
worst=0
for ((i = 1; i <= count; i++)); do
  rm -f "$folder"/*
  step=$((RANDOM % (steps - 1) + 1)) rank=$((RANDOM % ranks)) delay=$((RANDOM % 8))
  text=$(train "$step" "$rank" "$delay") || fail "try $i: exit code $?"
  grep -q 'restart 1 of 1' <<<"$text" || fail "try $i: rank $rank was not killed in step $step"
  grep -qx "$expected" <<<"$text" || fail "try $i: not '$expected'"
  pgrep -f "$folder/run" >/dev/null && fail "try $i: a process is left: $(pgrep -af "$folder/run")"
  took=$(awk '{print int(1000 * ($1 - k)); exit} {k = $1}' k="$(cat "$folder/run.killed")" "$folder/run.again")
  [ "$took" -gt "$worst" ] && worst=$took
  echo "try $i: rank $rank, step $step + $delay ms: restarted after $took ms, $expected"
done
echo "ok kill: $count times on $ranks ranks ($device), the slowest restart began $worst ms after the kill"
