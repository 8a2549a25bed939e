#!/bin/sh
# ptxas.sh OBJECT COMMAND...: runs a compiler. What `ptxas -v` says of a .cu file's kernels goes into OBJECT.ptxas, where
# registers.sh reads it, and not to the terminal.
object=$1
shift
case $object in
  *.cu.o) ;;
  *) exec "$@" ;;
esac
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
code=$?
about='^ptxas info|bytes stack frame'
grep -Ev "$about" "$said" >&2
grep -E "$about" "$said" >"$object.ptxas"
exit $code
