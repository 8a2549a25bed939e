#!/usr/bin/env bash
# failing.sh TLUA: the k-th call of the simulated libraries fails, for many k, while failing.lua trains: an error that
# names CUDA, or a retry that hides it; then the loss of a run without failures. Never a crash, a fault or a hang.
set -uo pipefail
tlua=$(realpath "$1")
script=$(realpath "$(dirname "$0")/failing.lua")
export TLUA_CUDA=sim TLUA_SIM_LOG=1
expected=$(timeout 60 "$tlua" "$script" 2>/dev/null) || { echo "without failures: $expected"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tried=0
for ((k = 1; k < 20000; k += k < 40 ? 1 : k < 200 ? 7 : 41)); do
  TLUA_SIM_FAIL=$k timeout 60 "$tlua" "$script" >"$work/out" 2>"$work/err"
  status=$?
  last=$(tail -n 1 "$work/out")
  if [ $status != 0 ] || { [ "$last" != "$expected" ] && [ "$last" != "not opened" ]; }; then
    echo "call $k fails: status $status instead of \"$expected\""
    cat "$work/out" "$work/err"
    exit 1
  fi
  grep -q "is the one to fail" "$work/err" || break
  tried=$((tried + 1))
done
echo "$tried calls failed in turn, of $k"
[ $tried -gt 40 ]
