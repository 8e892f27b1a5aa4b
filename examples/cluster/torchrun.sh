#!/bin/sh
# Train with several processes, started by torchrun. The number of processes on this machine comes first, then the
# options of `cappronet train`:
#
#     sh examples/cluster/torchrun.sh 2 --accelerator cpu --epochs 1      # a trial run: two processes on any computer
#     sh examples/cluster/torchrun.sh 4 --recipe paper/cifar10-wrn-28-10-capsule8 --run runs/wrn
#     sh examples/cluster/torchrun.sh 4 --resume runs/wrn                 # after an interruption
#
# On several machines, call it on each with the same options and its own rank. All need access to the run folder.
#
#     NODES=2 NODE_RANK=0 MASTER_ADDR=first.machine sh examples/cluster/torchrun.sh 4 --recipe ... --run ...
#     NODES=2 NODE_RANK=1 MASTER_ADDR=first.machine sh examples/cluster/torchrun.sh 4 --recipe ... --run ...
#
# On one machine `cappronet train --devices 4 --strategy ddp` does the same without torchrun. The environment in which
# cappronet is installed must be active: `torchrun` and `cappronet` are found by PATH.
set -eu

case ${1:-} in
'' | *[!0-9]*)
    echo "error: the number of processes comes first: sh torchrun.sh 2 --epochs 1" >&2
    exit 1
    ;;
esac
processes=$1
shift
nodes=${NODES:-1}

# Threads of each process. Without this, torchrun limits each process to one thread, with a warning.
cores=$(getconf _NPROCESSORS_ONLN)
threads=$((cores / processes))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"

if [ "$nodes" -eq 1 ]; then
    meet="--standalone" # finds a free port
else
    meet="--nnodes $nodes --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port ${MASTER_PORT:-29500}"
fi

# torchrun sets RANK, LOCAL_RANK, WORLD_SIZE and TORCHELASTIC_RUN_ID, by which Lightning Fabric recognizes that the
# processes have been started; --devices and --num-nodes must say how many. The bare "--" is needed: torchrun would take --run for
# an abbreviation of an option of its own. On several machines NODE_RANK also tells cappronet which of them prints.
# shellcheck disable=SC2086  # several words
exec torchrun $meet --nproc-per-node "$processes" --no-python -- \
    cappronet train --devices "$processes" --num-nodes "$nodes" --strategy ddp "$@"
