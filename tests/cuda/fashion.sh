#!/usr/bin/env bash
# fashion.sh TLUA: examples/fashion.lua gives the CPU's losses on a CUDA device, within 1e-4 of them, over three passes of
# 600 images. At a tenth of the usual learning rate: at the usual one training amplifies the last bits so much that the
# CPU with one thread and with two are 8e-4 apart in the second pass. 77 without the data set.
set -euo pipefail
tlua=$(realpath "$1")
example=$(realpath "$(dirname "$0")/../../examples/fashion.lua")
[ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || { echo "needs dataset-fashion-mnist"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for device in cpu cuda; do
  "$tlua" "$example" --device $device --limit 600 --epochs 3 --lr 0.0003 2>errors >$device.txt || { cat errors; exit 1; }
done
awk '
  !/^epoch/ { next }
  FILENAME == "cpu.txt" { cpu[$2] = $5; next }
  {
    apart = $5 / cpu[$2] - 1
    if (apart < 0) apart = -apart
    printf "epoch %d: %s on the CPU, %s on the device, %.1e apart\n", $2, cpu[$2], $5, apart
    seen++
    if (apart > 1e-4) bad = 1
  }
  END { exit bad || seen != 3 }' cpu.txt cuda.txt
