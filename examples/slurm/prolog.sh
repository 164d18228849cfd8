#!/bin/sh
# Slurm's Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/*): one `vramlens top` for each job on each node, as root.
# It leaves JSON lines that say whose the memory was, also of jobs that were killed. epilog.sh ends it.
if ! command -v vramlens >/dev/null; then
    logger -t vramlens "job $SLURM_JOB_ID is not watched: vramlens is not in PATH ($PATH)"
    exit 0
fi
lines=/var/log/vramlens/job$SLURM_JOB_ID-$(hostname -s).jsonl
mkdir -p /var/log/vramlens /run/vramlens
setsid vramlens top --jsonl "$lines" --interval 10 --alert "free < 2GiB for 1min" \
    --exec "logger -t vramlens" </dev/null >/dev/null 2>&1 &
echo $! > "/run/vramlens/job$SLURM_JOB_ID.pid"
exit 0 # a prolog that fails drains the node
