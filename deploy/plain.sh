#!/usr/bin/env bash
# A scheduler and two unequal workers on this machine, until Ctrl-C:
#
#     bash deploy/plain.sh [options of `dask scheduler`]
#
# The commands below are what README.md gives each machine of a real cluster.
# HOST (default: loopback) is where all listen, DASK the program.
set -euo pipefail

host=${HOST:-127.0.0.1}
dask=${DASK:-dask}
folder=$(mktemp -d)
pids=()

finish() {
    trap - EXIT INT TERM
    set +e
    # Workers first: one that loses its scheduler waits for it to come back.
    for pid in "${pids[@]:1}" "${pids[@]:0:1}"; do kill "$pid" && wait "$pid"; done 2>/dev/null
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# With port 0 only the scheduler knows its address; it writes it to this file.
"$dask" scheduler --host "$host" --preload fpmdask.preload \
    --scheduler-file "$folder/scheduler.json" "$@" &
pids+=($!)
until address=$(grep -Eo 't(cp|ls)://[^"]+' "$folder/scheduler.json" 2>/dev/null | head -n 1) &&
    [[ -n $address ]]; do
    kill -0 "${pids[0]}" || exit 1
    sleep 0.1
done

start_worker() { # name, threads, further options
    local name=$1 nthreads=$2
    shift 2
    "$dask" worker "$address" --host "$host" --name "$name" --nthreads "$nthreads" \
        --local-directory "$folder" --preload fpmdask.preload "$@" &
    pids+=($!)
}
# What follows the preload's name goes to the preload: CPUs to stay on, runs at a time.
first_cpu=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
start_worker large 2
start_worker small 1 --affinity "$first_cpu"

echo "scheduler at: $address"
wait -n # whichever ends first ends all
