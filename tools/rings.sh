# SPDX-License-Identifier: Apache-2.0
# What ./dev and slow_rings.sh run tests with. Read by them, from the top of the tree, with the folder of JUnit files in
# $results and how many programs may run at once in $jobs; what fails sets $failed and has a failed case in the results.
failed=0
python=${python:-.venv/bin/python}

# failure NAME [JUNIT FILE OR FOLDER]: NAME failed. It is counted also where it did not live to write the file.
failure() {
  failed=1
  python3 tools/junit.py "$results" "$@"
}

# check_ring NAME SCRIPT [ARGUMENTS]: a script of tools/ that writes the file behind --junit.
check_ring() {
  local name=$1
  shift
  "$python" "$@" --junit "$results/$name.xml" || failure "$name" "$results/$name.xml"
}

# pytest_ring NAME ARGUMENTS
pytest_ring() {
  local name=$1
  shift
  "$python" -m pytest -q -p no:cacheprovider --junit-xml="$results/$name.xml" "$@" || failure "$name" "$results/$name.xml"
}

# ctest_ring BUILD: the tests that CMake knows, of googletest.
ctest_ring() {
  local build=$1 list=$1/Testing/Temporary/LastTestsFailed.log binary
  rm -f "$list"
  GTEST_OUTPUT=xml:$results/ ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error \
    >"$results/ctest.log" && return
  cat "$results/ctest.log"
  if [ -s "$list" ]; then
    while IFS=: read -r _ binary; do failure "$binary" "$results/$binary.xml"; done <"$list"
  else
    failure ctest
  fi
}

# unit_tests BUILD NAME [COMMAND PREFIX ...]: every unit and room test binary of a build, $jobs at a time, counted under
# NAME. Those whose names start with a word of $left_out are not run.
left_out=
unit_tests() {
  local build=$1 name=$2 binary word log count=0
  shift 2
  mkdir -p "$results/$name"
  for binary in "$build"/*_test "$build"/room_*; do
    [ -x "$binary" ] || continue
    for word in $left_out; do [[ $(basename "$binary") == "$word"* ]] && continue 2; done
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    log=$results/$name/$(basename "$binary")
    count=$((count + 1))
    { GTEST_OUTPUT=xml:$results/$name/ "$@" "$binary" >"$log.log" 2>&1 || mv "$log.log" "$log.failed"; } &
  done
  wait
  [ "$count" -gt 0 ] || failure "$name"
  for log in "$results/$name"/*.failed; do
    [ -e "$log" ] || continue
    binary=$(basename "$log" .failed)
    failure "$name-$binary" "$results/$name/$binary.xml"
    say "$name: $binary failed"
    tail -30 "$log"
  done
}
