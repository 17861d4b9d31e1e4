#!/bin/sh
# Runs the tests and the benchmark of this bundle on the machine's CUDA driver.
#
#   ./run.sh [FOLDER [OPTION ...]]        all parts, one after the other, into FOLDER (`results`)
#   ./run.sh PART [FOLDER [OPTION ...]]   one part: tests pairs rmm holes streams replay copies kv peers report
#   ./run.sh --check [FOLDER]             sees that the bundle works, without a device: a minute
#
# Options are those of ./gpu-bench (--help lists them). Each part ends within 8 minutes: --seconds 400 unless another number
# is given. What a part has measured is in FOLDER after each measure, also if the part is ended from outside.
#
# The folder then has tests.txt, gpu.csv (all figures), gpu.md (the tables) and notes.txt (what was left out).
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
measures='pairs rmm holes streams replay copies kv'

check=no
part=all
case ${1-} in
  --check)
    check=yes
    shift
    ;;
  tests | pairs | rmm | holes | streams | replay | copies | kv | peers | report)
    part=$1
    shift
    ;;
esac
out=${1-results}
[ $# -gt 0 ] && shift
mkdir -p "$out" || exit 1
status=0
revision=$(cat "$here/revision")

failed() {
  echo "run.sh: $*" >&2
  status=1
}

# The options that peers.py has too, and whether there is a bound.
peers=
bounded=no
take=no
for option in "$@"; do
  case $option in
    --seconds | --seconds=*) bounded=yes ;;
  esac
  case $option in
    --quick | --seconds=* | --rounds=* | --memory=*) peers="$peers $option" ;;
    --seconds | --rounds | --memory)
      peers="$peers $option"
      take=yes
      continue
      ;;
    *) [ $take = yes ] && peers="$peers $option" ;;
  esac
  take=no
done
if [ $bounded = no ]; then
  set -- --seconds 400 "$@"
  peers="$peers --seconds 400"
fi

if [ $check = yes ]; then
  ALLOTMENT_CUDA_DRIVER=stand-in
  ALLOTMENT_STAND_IN=$here/liballotment_stand_in_driver.so
  export ALLOTMENT_CUDA_DRIVER ALLOTMENT_STAND_IN
  set -- --sim --quick "$@"
  peers="--quick $peers"
fi

tests() {
  echo "tests: $out/tests.txt"
  if "$here/gpu-tests" --test-threads 1 >"$out/tests.txt" 2>&1; then
    tail -n 2 "$out/tests.txt"
  else
    # The folder of a check does not stay.
    if [ $check = yes ]; then cat "$out/tests.txt"; else tail -n 2 "$out/tests.txt"; fi
    failed "the tests failed: $out/tests.txt"
  fi
}

# One measure, by name; the rest are options.
measure() {
  name=$1
  shift
  echo "$name: $out/bench-$name.csv"
  rm -f "$out/bench-$name.csv"
  "$here/gpu-bench" --revision "$revision" --output "$out/bench-$name.csv" "$@" "$name" \
    2>"$out/notes-$name.txt" >/dev/null
  # In simulation there are no copies and no key-value caches.
  if [ $? -ne 0 ]; then
    case $check:$name in
      yes:copies | yes:kv) ;;
      *) failed "the measure $name failed: $(tail -n 1 "$out/notes-$name.txt")" ;;
    esac
  fi
}

peers() {
  echo "PyTorch and CuPy: $out/peers.csv"
  rm -f "$out/peers.csv"
  if command -v python3 >/dev/null; then
    "$here/gpu-bench" traces "$out/traces" || failed "the traces cannot be written"
    # shellcheck disable=SC2086 # they are several words
    python3 "$here/peers.py" --traces "$out/traces" --output "$out/peers.csv" $peers 2>"$out/notes-peers.txt" ||
      failed "peers.py failed: $(tail -n 1 "$out/notes-peers.txt")"
    cat "$out/notes-peers.txt"
    rm -rf "$out/traces"
  else
    echo "python3 is not installed: neither is measured" | tee "$out/notes-peers.txt"
  fi
}

report() {
  set --
  for name in $measures; do
    [ -f "$out/bench-$name.csv" ] && set -- "$@" "$out/bench-$name.csv"
  done
  [ -f "$out/peers.csv" ] && set -- "$@" "$out/peers.csv"
  cat "$out"/notes-*.txt >"$out/notes.txt" 2>/dev/null
  if [ $# -gt 0 ]; then
    "$here/gpu-bench" report --csv "$out/gpu.csv" "$@" >"$out/gpu.md" || failed "the tables cannot be made"
    echo "figures: $out/gpu.csv, tables: $out/gpu.md"
  fi
}

case $part in
  tests) tests ;;
  peers) peers ;;
  report) report ;;
  all)
    tests
    for one in $measures; do measure "$one" "$@"; done
    if [ $check = yes ]; then
      "$here/gpu-bench" --revision "$revision" --stand-in --quick 2>>"$out/notes-pairs.txt" >/dev/null ||
        failed "the benchmark failed on the stand-in driver: $(tail -n 1 "$out/notes-pairs.txt")"
    fi
    peers
    report
    ;;
  *)
    measure "$part" "$@"
    report
    ;;
esac
exit $status
