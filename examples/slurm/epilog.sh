#!/bin/sh
# Slurm's Epilog: ends what prolog.sh began.
file=/run/vramlens/job$SLURM_JOB_ID.pid
[ -r "$file" ] && kill "$(cat "$file")" 2>/dev/null
rm -f "$file"
exit 0
