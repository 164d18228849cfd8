#!/bin/sh
# Builds native/fuzz_snapshot.cpp and native/fuzz_replay.cpp (clang, libFuzzer, ASan, UBSan) and runs them on the kept
# corpora, for SECONDS in all:
#     tests/fuzz/run.sh SECONDS [WORKDIR] [libFuzzer options]
# New inputs go to WORKDIR/corpus and WORKDIR/replay, findings to WORKDIR; the exit status is 0 when there are none.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
seconds=$1
work=${2:-$root/build/fuzz}
[ $# -ge 2 ] && shift 2 || shift
mkdir -p "$work/corpus" "$work/replay"
cmake -S "$root" -B "$work/build" -DVRAMLENS_FUZZ=ON -DCMAKE_CXX_COMPILER="${CXX:-clang++}" >"$work/cmake.log"
cmake --build "$work/build" --parallel 2 >"$work/build.log"
export ASAN_OPTIONS="quarantine_size_mb=8:malloc_context_size=5:${ASAN_OPTIONS:-}"
third=$((seconds / 3))
"$work/build/fuzz_snapshot" "$work/corpus" "$root/tests/fuzz/corpus" -dict="$root/tests/fuzz/pickle.dict" \
    -artifact_prefix="$work/" -max_total_time=$((seconds - third)) -max_len=2048 -len_control=20 -use_cmp=0 -entropic=0 \
    -timeout=5 -rss_limit_mb=512 -malloc_limit_mb=256 -print_final_stats=1 "$@"
exec "$work/build/fuzz_replay" "$work/replay" "$root/tests/fuzz/replay" -artifact_prefix="$work/replay-" \
    -max_total_time="$third" -max_len=4096 -timeout=5 -rss_limit_mb=512 -malloc_limit_mb=256 -print_final_stats=1 "$@"
