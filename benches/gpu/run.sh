#!/bin/sh
# Runs the tests and the benchmark of this bundle on the machine's CUDA driver.
#
#   ./run.sh [FOLDER [OPTION ...]]   into FOLDER (`results`); options are those of ./gpu-bench (--help lists them)
#   ./run.sh --check [FOLDER]        sees that the bundle works, without a device: a minute
#
# The folder then has tests.txt, gpu.csv (all figures), gpu.md (the tables) and notes.txt (what was left out).
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1

check=no
if [ "${1-}" = --check ]; then
  check=yes
  shift
fi
out=${1-results}
[ $# -gt 0 ] && shift
mkdir -p "$out" || exit 1
rm -f "$out/peers.csv" "$out/gpu.csv" "$out/bench.csv" "$out/gpu.md"
status=0
revision=$(cat "$here/revision")

failed() {
  echo "run.sh: $*" >&2
  status=1
}

if [ $check = yes ]; then
  ALLOTMENT_CUDA_DRIVER=stand-in
  ALLOTMENT_STAND_IN=$here/liballotment_stand_in_driver.so
  export ALLOTMENT_CUDA_DRIVER ALLOTMENT_STAND_IN
  set -- --sim --quick
  peers=--quick
else
  peers=
fi

echo "tests: $out/tests.txt"
if "$here/gpu-tests" --test-threads 1 >"$out/tests.txt" 2>&1; then
  tail -n 2 "$out/tests.txt"
else
  # The folder of a check does not stay.
  if [ $check = yes ]; then cat "$out/tests.txt"; else tail -n 2 "$out/tests.txt"; fi
  failed "the tests failed: $out/tests.txt"
fi

echo "benchmark: $out/bench.csv"
"$here/gpu-bench" --revision "$revision" --output "$out/bench.csv" "$@" 2>"$out/notes.txt" >/dev/null ||
  failed "the benchmark failed: $(tail -n 1 "$out/notes.txt")"
if [ $check = yes ]; then
  "$here/gpu-bench" --revision "$revision" --stand-in --quick 2>>"$out/notes.txt" >/dev/null ||
    failed "the benchmark failed on the stand-in driver: $(tail -n 1 "$out/notes.txt")"
fi

echo "PyTorch and CuPy: $out/peers.csv"
if command -v python3 >/dev/null; then
  "$here/gpu-bench" traces "$out/traces" || failed "the traces cannot be written"
  python3 "$here/peers.py" --traces "$out/traces" --output "$out/peers.csv" $peers 2>"$out/peers.txt" ||
    failed "peers.py failed: $(tail -n 1 "$out/peers.txt")"
  cat "$out/peers.txt" | tee -a "$out/notes.txt"
  rm -rf "$out/traces" "$out/peers.txt"
else
  echo "python3 is not installed: neither is measured" | tee -a "$out/notes.txt"
fi

if [ -f "$out/bench.csv" ]; then
  set -- "$out/bench.csv"
  [ -f "$out/peers.csv" ] && set -- "$@" "$out/peers.csv"
  "$here/gpu-bench" report --csv "$out/gpu.csv" "$@" >"$out/gpu.md" || failed "the tables cannot be made"
  echo "figures: $out/gpu.csv, tables: $out/gpu.md"
fi
exit $status
