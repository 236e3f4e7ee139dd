#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds every fuzz target with clang and runs each for some seconds on its seeds.
# Usage: fuzz.sh SECONDS [JUNIT FILE]. Exits 1 when an input crashed a target.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
junit=${2:-}
failed=0
cases=""
mkdir -p build
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ -DQUERN_FUZZ=ON \
  -DQUERN_CLI=OFF >build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
targets=$(cd fuzz && ls fuzz_*.cc | sed 's/\.cc$//')
# shellcheck disable=SC2086
ninja -C build/fuzz $targets >>build/fuzz.log 2>&1 || { tail -40 build/fuzz.log; exit 1; }
for target in $targets; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  seeds=fuzz/seeds/${target#fuzz_}
  [ -d "$seeds" ] || seeds=
  # shellcheck disable=SC2086
  if build/fuzz/fuzz/"$target" -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=20 \
    -artifact_prefix="build/fuzz/$target-" "$corpus" $seeds >"build/fuzz/$target.log" 2>&1; then
    echo "$target: $(grep -c . <(ls "$corpus")) inputs kept"
    cases+="<testcase classname=\"fuzz\" name=\"$target\"/>"
  else
    failed=1
    tail -40 "build/fuzz/$target.log"
    cases+="<testcase classname=\"fuzz\" name=\"$target\"><failure message=\"crash\"/></testcase>"
  fi
done
[ -z "$junit" ] || echo "<testsuite name=\"fuzz\">$cases</testsuite>" >"$junit"
exit $failed
