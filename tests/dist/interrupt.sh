#!/bin/bash
# interrupt.sh HOW [-SIGNAL] LAUNCHER...: starts `LAUNCHER... interrupted.lua HOW` with 3 ranks, and when all are there
# sends its process group SIGINT, as a terminal's Ctrl-C does; with -SIGNAL only LAUNCHER gets it, that signal. Prints the
# launcher's exit code, and whether all ranks are gone within 5 s.
set -u
how=$1 signal=
shift
if [[ $1 == -* ]]; then signal=$1 && shift; fi
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CAME=$folder/rank
script=$here/interrupted.lua
# a shell's background processes ignore SIGINT
setsid env --default-signal=INT "$@" "$script" "$how" "$folder" &
pid=$!
while ! [ -e "$CAME.0" ] || ! [ -e "$CAME.1" ] || ! [ -e "$CAME.2" ]; do
  kill -0 $pid || exit 1
  sleep 0.05
done
sleep 0.2 # into what it waits for
if [ -n "$signal" ]; then kill "$signal" $pid; else kill -INT -- -$pid; fi
wait $pid
echo "exit code $?"
for ((i = 0; i < 50; i++)); do
  if ! pgrep -f "interrupted.lua $how $folder" >/dev/null; then
    echo "all gone"
    exit 0
  fi
  sleep 0.1
done
echo "left: $(pgrep -af "interrupted.lua $how $folder")"
pkill -9 -f "interrupted.lua $how $folder"
exit 1
