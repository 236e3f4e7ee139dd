#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The rings that ./dev test --all adds: sanitizer builds, capped and emulated instruction sets, a fuzz smoke run.
# Usage: slow_rings.sh RESULTS. Leaves JUnit files there; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$PWD/${1:?folder for the results}
failed=0
jobs=${QUERN_JOBS:-$(nproc)}

say() { printf '\033[1m%s\033[0m (after %d s)\n' "$*" "$SECONDS" >&2; }

# unit_tests BUILD NAME [COMMAND PREFIX ...]: every unit and room test binary of a build, $jobs at a time, counted under
# NAME. Those whose names start with a word of $left_out are not run.
left_out=
unit_tests() {
  local build=$1 name=$2 binary word log
  shift 2
  mkdir -p "$results/$name"
  for binary in "$build"/*_test "$build"/room_*; do
    [ -x "$binary" ] || continue
    for word in $left_out; do [[ $(basename "$binary") == "$word"* ]] && continue 2; done
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    log=$results/$name/$(basename "$binary")
    { GTEST_OUTPUT=xml:$results/$name/ "$@" "$binary" >"$log.log" 2>&1 || mv "$log.log" "$log.failed"; } &
  done
  wait
  for log in "$results/$name"/*.failed; do
    [ -e "$log" ] || continue
    failed=1
    say "$name: $(basename "$log" .failed) failed"
    tail -30 "$log"
  done
}

say "the instruction sets below the best one"
for isa in scalar avx2; do
  QUERN_ISA=$isa PYTHONPATH=build/release/python QUERN_BUILD=build/release .venv/bin/python -m pytest -q \
    tests/oracle/test_rooms.py tests/oracle/test_every_node.py tests/oracle/test_graph.py -k "not 06b" -p no:cacheprovider --junit-xml="$results/oracle-$isa.xml" || failed=1
done

say "emulated processors: no instruction of a better one leaks"
# The kernel's list of flags is the real processor's.
# Files, texts and conversations add no code for an instruction set (check_isa.py), and take minutes here.
left_out="formats_ text_ model_qwen4_exp_manifest engine_chat"
export QUERN_READABLE_GUARDS=1 GTEST_FILTER=-Features.DetectionAgreesWithTheKernel
for cpu in Nehalem Haswell; do
  unit_tests build/release "emulated-$cpu" qemu-x86_64 -cpu "$cpu"
done
unset QUERN_READABLE_GUARDS GTEST_FILTER
left_out=

say "address and undefined-behaviour sanitizers"
if cmake --preset asan -DQUERN_SANITIZE=address,undefined -DQUERN_PYTHON=OFF >"$results/asan-configure.log" 2>&1 &&
  ninja -C build/asan -j "$jobs" >"$results/asan-build.log" 2>&1; then
  unit_tests build/asan asan
  QUERN_BUILD=build/asan PYTHONPATH=build/release/python .venv/bin/python -m pytest tests/product -q -m "not slow and not memory" \
    -p no:cacheprovider --junit-xml="$results/product-asan.xml" || failed=1
else
  failed=1
  tail -30 "$results/asan-build.log"
fi

say "a binary without model lines"
if cmake -S . -B build/bare -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUERN_MODEL_LINES= -DQUERN_TESTS=OFF >"$results/bare-configure.log" 2>&1 &&
  ninja -C build/bare -j "$jobs" quern >"$results/bare-build.log" 2>&1; then
  PYTHONPATH=build/release/python QUERN_BUILD=build/release QUERN_BUILD_WITHOUT_LINES=build/bare .venv/bin/python -m pytest tests/product -q \
    -k without_lines -p no:cacheprovider --junit-xml="$results/product-bare.xml" || failed=1
else
  failed=1
  tail -30 "$results/bare-build.log"
fi

say "tsan: the threads"
cmake --preset tsan -DQUERN_PYTHON=OFF >"$results/tsan-configure.log" 2>&1 &&
  ninja -C build/tsan -j "$jobs" cpu_pool_test room_matmul_nbits room_gqa_attention >"$results/tsan-build.log" 2>&1 ||
  { failed=1; tail -30 "$results/tsan-build.log"; }
unit_tests build/tsan tsan

say "fuzz smoke"
tools/fuzz.sh 5 "$results/fuzz.xml" || failed=1

exit $failed
