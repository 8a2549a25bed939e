#!/bin/bash
# started.sh N TLUA [ARGUMENT...]: N ranks that meet over TCP, started as torchrun starts them: by variables alone. A rank
# that fails ends the others; the exit code is its. PORT: where they meet (below those that connections get by themselves).
set -u
trap '' INT # the ranks end by it, and then this
n=$1
shift
export WORLD_SIZE=$n MASTER_ADDR=${MASTER_ADDR-localhost} MASTER_PORT=${PORT:-$((10000 + $$ % 20000))}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; exit 143' TERM
for ((rank = 0; rank < n; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  pids+=($!)
done
code=0
for ((rank = 0; rank < n; rank++)); do
  wait -n
  one=$?
  if [ $one -ne 0 ] && [ $code -eq 0 ]; then
    code=$one
    # the others get time to say why, then they are ended
    (sleep 6 && kill "${pids[@]}") >/dev/null 2>&1 &
    killer=$!
    disown # no rank: not waited for
  fi
done
[ $code -ne 0 ] && kill "$killer" 2>/dev/null
exit $code
