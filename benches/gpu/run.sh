#!/bin/sh
# Runs the checks, the tests and the benchmark of this bundle on the machine's CUDA driver.
#
#   ./run.sh [FOLDER [OPTION ...]]        all parts, one after the other, into FOLDER (`results`)
#   ./run.sh PART [FOLDER [OPTION ...]]   one part: machine example tests sanitizer probe torch
#                                         pairs rmm holes streams replay copies kv peers report
#   ./run.sh --check [FOLDER]             sees that the bundle works, without a device: a minute
#
# Options are those of ./gpu-bench (--help lists them). Each part ends within 8 minutes: --seconds 400 unless another number
# is given. What a part has found is in FOLDER after each measure, also if the part is ended from outside.
#
# The folder then has a text for each check, gpu.csv (all figures), gpu.md (the tables) and notes.txt (what was left out).
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
  machine | example | tests | sanitizer | probe | torch | pairs | rmm | holes | streams | replay | copies | kv | peers | report)
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

# Shows what a check has printed, and where it is.
show() {
  echo "$1: $out/$1.txt"
  tail -n "$2" "$out/$1.txt"
}

machine() {
  {
    uname -srm
    if command -v nvidia-smi >/dev/null; then
      nvidia-smi
      nvidia-smi --query-gpu=index,name,memory.total,driver_version,mig.mode.current --format=csv
    else
      echo "nvidia-smi is not installed"
    fi
  } >"$out/machine.txt" 2>&1
  show machine 3
}

example() {
  if [ $check = yes ]; then small="--sim"; else small=; fi
  # shellcheck disable=SC2086 # it may be no word
  timeout 400 "$here/gpu_pipeline" $small >"$out/example.txt" 2>&1 || failed "the example failed: $out/example.txt"
  show example 6
}

tests() {
  timeout 450 "$here/gpu-tests" --test-threads 1 --nocapture >"$out/tests.txt" 2>&1
  code=$?
  if [ $code -eq 0 ]; then
    show tests 2
    grep "means something on the stand-in driver only" "$out/tests.txt" | sort -u | wc -l |
      sed 's/$/ tests ended at once, or looked at less, since they control the driver/'
  else
    # The folder of a check does not stay.
    if [ $check = yes ]; then cat "$out/tests.txt"; else show tests 2; fi
    failed "the tests failed: $out/tests.txt"
  fi
}

sanitizer() {
  if [ $check = yes ] || ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not used" | tee "$out/sanitizer.txt"
    return
  fi
  # Errors of calls are what many tests want to see; what counts is memory that a kernel or a copy may not touch.
  timeout 400 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
    "$here/gpu-tests" --test-threads 1 >"$out/sanitizer.txt" 2>&1 ||
    failed "compute-sanitizer found something, or did not end: $out/sanitizer.txt"
  show sanitizer 3
}

probe() {
  if [ $check = yes ]; then small="--stand-in --quick"; else small=; fi
  # shellcheck disable=SC2086 # they are several words
  timeout 400 "$here/gpu-bench" probe $small >"$out/probe.txt" 2>&1 || failed "the probe failed: $out/probe.txt"
  show probe 10
}

torch() {
  if [ $check = yes ] || ! command -v python3 >/dev/null; then
    echo "PyTorch is not used" | tee "$out/torch.txt"
    return
  fi
  timeout 450 python3 "$here/torch_device.py" "$here/liballotment.so" >"$out/torch.txt" 2>&1 ||
    failed "PyTorch or CuPy failed on the pools: $out/torch.txt"
  show torch 40
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
  machine | example | tests | sanitizer | probe | torch) $part ;;
  peers) peers ;;
  report) report ;;
  all)
    for one in machine example tests sanitizer probe torch; do $one; done
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
