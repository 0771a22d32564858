#!/bin/sh
# Runs the fuzz targets, some seconds each, and prints what each has done. Ends with 1 if one has found
# something, whose input is under target/fuzz/artifacts: `make fuzz` says how.
#
#   FUZZ_SECONDS   seconds for each target (60)
#   FUZZ_TARGETS   their names (all)
set -eu

cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
work=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
export CARGO_TARGET_DIR="$work"

rustup toolchain list 2>/dev/null | grep -q '^nightly' || {
    echo 'fuzzing needs a nightly toolchain: rustup toolchain install nightly' >&2
    exit 2
}
cargo fuzz --version >/dev/null 2>&1 || {
    echo 'fuzzing needs cargo-fuzz: cargo install cargo-fuzz' >&2
    exit 2
}
targets=${FUZZ_TARGETS:-$(cargo +nightly fuzz list --fuzz-dir fuzz)}
# Built first: what a build takes is not fuzzing
cargo +nightly fuzz build --fuzz-dir fuzz

printf '%-14s %12s %9s %9s %s\n' target executions seconds coverage outcome
failed=0
for target in $targets; do
    mkdir -p "$work/grown/$target" "$work/artifacts/$target"
    log="$work/$target.log"
    outcome=passed
    # New inputs go to the first folder; the second is what is kept
    "$work/x86_64-unknown-linux-gnu/release/$target" \
        "$work/grown/$target" "fuzz/corpus/$target" \
        -artifact_prefix="$work/artifacts/$target/" -max_total_time="$seconds" -max_len=4096 -len_control=20 \
        -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=64 -print_final_stats=1 \
        >"$log" 2>&1 || { outcome="FOUND: see $log"; failed=1; }
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)
    took=$(sed -n 's/^Done .* in \([0-9]*\) second.*/\1/p' "$log")
    printf '%-14s %12s %9s %9s %s\n' "$target" "${executions:-?}" "${took:-?}" "${coverage:-?}" "$outcome"
done
exit $failed
