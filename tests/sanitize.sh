#!/bin/sh
# Runs the tests of the unsafe rooms, and those of connections, under sanitizers:
#
#   tests/sanitize.sh address thread
#
# AddressSanitizer finds what is used after it is freed or beyond its end; ThreadSanitizer finds what two
# threads touch without order. For the latter the standard library is built with it, or its locks would
# be unknown to it; the former needs no such build, which takes longer than all the rest.
set -eu

cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-gnu
work=${CARGO_TARGET_DIR:-$PWD/target}

rustup component list --toolchain nightly --installed 2>/dev/null | grep -q '^rust-src' || {
    echo 'sanitizers need a nightly toolchain with rust-src: rustup toolchain install nightly --component rust-src' >&2
    exit 2
}

for sanitizer in "$@"; do
    # A child that is forked, killed or has no memory left is what these tests are about: neither its
    # leaks nor its allocations that fail are findings
    export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
    # Fences are not known to it: what they order would be found, without being wrong
    export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
    export RUSTFLAGS="-Zsanitizer=$sanitizer"
    export CARGO_TARGET_DIR="$work/sanitize-$sanitizer"
    # One test after another under ThreadSanitizer: memory is mapped and unmapped by system calls that it
    # does not see, so what two tests have had at the same address, in turn, would be a race to it.
    # Nor the test of a limit to the address space, of which it needs terabytes itself.
    # The standard library that is built with ThreadSanitizer has a lock file of its own.
    case $sanitizer in
        thread) standard=-Zbuild-std tests='-- --test-threads=1 --skip process_out_of_memory_is_told_so' ;;
        *) standard=--locked tests= ;;
    esac
    run() {
        # Nothing, or some words
        # shellcheck disable=SC2086
        cargo +nightly test $standard --target $target "$@" $tests
    }
    echo "== $sanitizer: memory that is shared, and what Linux is asked for"
    run -p backhaul-shm -p backhaul-sys --lib --tests
    echo "== $sanitizer: connections"
    run -p backhaul --lib connection
done
