#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The rings that ./dev test --all adds: sanitizer builds, capped and emulated instruction sets, a fuzz smoke run.
# Usage: slow_rings.sh RESULTS. Leaves JUnit files there; exits 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$PWD/${1:?folder for the results}
jobs=${QUERN_JOBS:-$(nproc)}

say() { printf '\033[1m%s\033[0m (after %d s)\n' "$*" "$SECONDS" >&2; }

. tools/rings.sh

say "formatting"
check_ring format tools/check_format.py

export PYTHONPATH=build/release/python QUERN_BUILD=build/release
say "the instruction sets below the best one"
for isa in scalar avx2; do
  QUERN_ISA=$isa pytest_ring "oracle-$isa" tests/oracle/test_{rooms,every_node,graph,greedy}.py tests/oracle/test_qwen4_*_golden.py \
    -k "not 06b"
  # What documents show and what the demo models say must not hang on this machine's instruction set. Whole texts are read
  # in seconds, but in minutes without vectors.
  quick=()
  [ $isa = avx2 ] || quick=(-k "console or recognisable")
  QUERN_ISA=$isa pytest_ring "product-$isa" tests/product/test_{docs,demo_qwen4}.py "${quick[@]}"
done

say "emulated processors: no instruction of a better one leaks"
# Files, texts, models and conversations add no code for an instruction set (check_isa.py), and take minutes here; whole models of
# both lines run in engine_session_test and c_quern_test.
left_out="formats_ text_ model_ engine_chat engine_perplexity engine_session_qwen4"
# Nor do tests that compare cuts of the same work, or repeat kernels at the sizes of models; two of them took half an hour. And
# the kernel's list of flags is the real processor's.
not_emulated=(Features.DetectionAgreesWithTheKernel '*Threads*ChangeBits' '*ThreadCount*' '*EqualTheWhole' '*EqualSingleOnes'
  '*RowsDoNotDependOnHowManyThereAre' '*AtModelSizes/*' Attention.AgreesWithTheSoftmaxWrittenOut '*TheSameBitsInEveryCall'
  SparseAttention.AllBlocksByNameGiveTheBitsOfDenseAttention SessionTest.FullContextEndsGenerationAsLength)
export QUERN_READABLE_GUARDS=1 GTEST_FILTER=-$(IFS=:; echo "${not_emulated[*]}")
for cpu in Nehalem Haswell; do
  unit_tests build/release "emulated-$cpu" qemu-x86_64 -cpu "$cpu"
done
unset QUERN_READABLE_GUARDS GTEST_FILTER
left_out=

say "address and undefined-behaviour sanitizers"
if cmake --preset asan -DQUERN_SANITIZE=address,undefined -DQUERN_TESTS=ON -DQUERN_PYTHON=OFF >"$results/asan-configure.log" 2>&1 &&
  ninja -C build/asan -j "$jobs" >"$results/asan-build.log" 2>&1; then
  unit_tests build/asan asan
  # The Python module stays that of the release build.
  QUERN_BUILD=build/asan pytest_ring product-asan tests/product -m "not slow and not memory and not module"
else
  failure asan
  tail -30 "$results/asan-build.log"
fi

say "a binary without model lines"
if cmake -S . -B build/bare -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUERN_MODEL_LINES= >"$results/bare-configure.log" 2>&1 &&
  ninja -C build/bare -j "$jobs" quern >"$results/bare-build.log" 2>&1; then
  QUERN_BUILD_WITHOUT_LINES=build/bare pytest_ring product-bare tests/product -k without_lines
else
  failure bare
  tail -30 "$results/bare-build.log"
fi

say "tsan: the threads"
cmake --preset tsan -DQUERN_TESTS=ON -DQUERN_PYTHON=OFF >"$results/tsan-configure.log" 2>&1 &&
  ninja -C build/tsan -j "$jobs" cpu_pool_test room_matmul_nbits room_gqa_attention >"$results/tsan-build.log" 2>&1 ||
  { failure tsan-build; tail -30 "$results/tsan-build.log"; }
unit_tests build/tsan tsan

say "fuzz smoke"
tools/fuzz.sh 5 "$results/fuzz.xml" || failure fuzz "$results/fuzz.xml"

exit $failed
