#!/usr/bin/env bash
# fashion.sh TLUA: examples/fashion.lua gives the CPU's losses on a CUDA device, within 1e-4 of them: three passes over
# 600 images. 77 without the data set.
set -euo pipefail
tlua=$(realpath "$1")
example=$(realpath "$(dirname "$0")/../../examples/fashion.lua")
[ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || { echo "needs dataset-fashion-mnist"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for device in cpu cuda; do
  "$tlua" "$example" --device $device --limit 600 --epochs 3 2>/dev/null | tee $device.txt
done
awk '
  /^epoch/ { if (FNR == NR) cpu[$2] = $5; else { seen++; off = $5 / cpu[$2] - 1; if (off < 0) off = -off
      printf "epoch %d: %s and %s, %.1e apart\n", $2, cpu[$2], $5, off; if (off > 1e-4) bad = 1 } }
  END { exit bad || seen != 3 }' cpu.txt <(grep ^epoch cuda.txt)
