#!/usr/bin/env bash
# registers.sh FOLDER [--update]: what ptxas said of the kernels whose logs (ptxas.sh) lie under FOLDER. Fails if one of
# them spills registers to memory, or takes over 8 registers more than registers.txt has for its file and architecture:
# then fewer of its threads are resident. --update writes registers.txt anew.
set -euo pipefail
table=$(dirname "$0")/registers.txt
[ ! -e "$1/registers.txt" ] || table=$1/registers.txt # planted faults have their own
mapfile -t logs < <(find "$1" -name '*.cu.o.ptxas' | sort)
[ ${#logs[@]} -gt 0 ] || { echo "registers.sh: there are no logs under $1" >&2; exit 1; }

# FILE ARCHITECTURE KERNELS REGISTERS SPILLED KERNEL, a line for each file and architecture; the kernel is the hungriest
figures() {
  for log in "${logs[@]}"; do
    file=${log##*/}
    awk -v file="${file%.o.ptxas}" '
      /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; arch = part[4]; kernels[arch]++ }
      /bytes spill stores/ {
        for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill") bytes = $(i - 1) + bytes
        spilled[arch] += bytes
        if (bytes > 0) print file ": " kernel " spills on " arch | "c++filt >&2"
        bytes = 0
      }
      /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/)
        n = substr($0, RSTART + 5, RLENGTH - 5) + 0
        if (n > most[arch]) { most[arch] = n; hungriest[arch] = kernel }
      }
      END { for (a in kernels) print file, a, kernels[a], most[a] + 0, spilled[a] + 0, hungriest[a] }' "$log"
  done | sort -k1,1 -k2,2V
}

if [ "${2:-}" = --update ]; then
  {
    echo "# Kernels of each file and the most registers that one of them takes ($(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/nvcc \1/p'))."
    echo "# Written by tests/cuda/registers.sh FOLDER --update; checked by the test cuda.registers."
    figures | awk '{ printf "%-24s %-7s %4d kernels %4d registers\n", $1, $2, $3, $4 }'
  } >"$table.new"
  mv "$table.new" "$table"
  exit 0
fi

figures | awk '
  NR == FNR { if ($1 !~ /^#/) allowed[$1, $2] = $5 + 8; next }
  { kernels += $3 }
  $5 > 0 { print $1 ": " $5 " bytes of registers spilled on " $2; bad = 1 }
  ($1, $2) in allowed && $4 > allowed[$1, $2] {
    print $1 ": " $4 " registers on " $2 ", the table has " allowed[$1, $2] - 8 ": " $6
    bad = 1
  }
  END { print kernels + 0 " kernels looked at"; exit bad }' "$table" - | c++filt
