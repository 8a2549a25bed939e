#!/bin/bash
# netns.sh TLUA [mpi|variables]: two ranks in network namespaces of their own, joined by a veth pair, started by mpirun or
# by torchrun's variables: gradients over TCP equal those of one process. Ends with 77 and a reason where this machine
# cannot make namespaces.
set -u
program=${1:?netns.sh TLUA [mpi|variables]} by=${2:-mpi}
here=$(cd "$(dirname "$0")" && pwd)
skip() {
  echo "$1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "network namespaces need iproute2"
[ "$by" = variables ] || command -v mpirun >/dev/null || skip "ranks need Open MPI"
names=("tlua$$a" "tlua$$b")
folder=$(mktemp -d)
clean() {
  for n in "${names[@]}"; do ip netns del "$n" 2>/dev/null; done
  rm -rf "$folder"
}
trap clean EXIT
for n in "${names[@]}"; do ip netns add "$n" 2>/dev/null || skip "this machine allows no network namespaces"; done
ip link add "v$$a" netns "${names[0]}" type veth peer name "v$$b" netns "${names[1]}" 2>/dev/null ||
  skip "this machine has no veth pairs"
i=1
for s in a b; do
  ip -n "tlua$$$s" link set lo up
  ip -n "tlua$$$s" addr add "10.213.7.$i/24" dev "v$$$s" || skip "no addresses on the veth pair"
  ip -n "tlua$$$s" link set "v$$$s" up
  i=$((i + 1))
done
export OMP_NUM_THREADS=1
if [ "$by" = variables ]; then
  export WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=10.213.7.1 MASTER_PORT=29500
  RANK=1 timeout 60 ip netns exec "${names[1]}" "$program" "$here/equal.lua" &
  RANK=0 timeout 60 ip netns exec "${names[0]}" "$program" "$here/equal.lua" && wait $!
  exit
fi
# What Open MPI calls to reach a host: `agent [options] HOST command`.
cat > "$folder/agent" <<END
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
[ "\$host" = 10.213.7.1 ] && name=${names[0]} || name=${names[1]}
exec ip netns exec "\$name" sh -c "\$*"
END
chmod +x "$folder/agent"
timeout 60 ip netns exec "${names[0]}" mpirun --allow-run-as-root --oversubscribe --bind-to none \
  --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.213.7.0/24 \
  --mca oob_tcp_if_include 10.213.7.0/24 -H 10.213.7.1:1,10.213.7.2:1 -n 2 -wdir "$PWD" "$program" "$here/equal.lua"
