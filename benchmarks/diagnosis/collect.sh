#!/usr/bin/env bash
# Collects and times all programs of the benchmark on a GPU: bash benchmarks/diagnosis/collect.sh OUT [NAME...]
# OUT gets captures/NAME of each program, and measured.json, the times of all with and without their fault.
#
# Needs nsys, ncu, nvcc and, as `python`, one with kanalyze, torch, and jax, cupy and triton for the programs of these.
# SIDE_BY_SIDE programs start at a time; a lock lets one of them run its steps. What is in OUT already stays.
set -u
out=$(mkdir -p "$1/captures" "$1/logs" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift
export DIAGNOSIS_LOCK="$out/lock"

collected() {  # collected PROGRAM: makes its capture, under another name until it is whole
  name=$(basename "${1%.*}")
  passes=nsys,torch
  case $name in
    jax_* | cupy_*) passes=nsys ;;
    cuda_*) passes=nsys,ncu ;;  # programs whose kernels are theirs to change: as `collect` does by itself
    triton_*) passes=nsys,torch,ncu ;;
  esac
  [ -d "$out/captures/$name" ] && return
  rm -rf "$out/captures/.$name"
  if python -m kanalyze collect -o "$out/captures/.$name" --with $passes "$1" > "$out/logs/$name" 2>&1 &&
    mv "$out/captures/.$name" "$out/captures/$name"; then
    rm -f "$out/captures/$name"/*.nsys-rep "$out/captures/$name"/*.ncu-rep
    echo "$name: collected"
  else
    echo "$name: failed, see $out/logs/$name"
  fi
}
export -f collected
export out

chosen=()
for program in "$here"/programs/[!_]*.py "$here"/programs/*.cu; do
  name=$(basename "${program%.*}")
  if [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; then chosen+=("$program"); fi
done
printf '%s\0' "${chosen[@]}" | xargs -0 -P "${SIDE_BY_SIDE:-6}" -n 1 bash -c 'collected "$0"'

# times, with nothing else on the GPU
names=$(for program in "${chosen[@]}"; do basename "${program%.*}"; done)
torch_names=$(grep -vE '^(jax|cupy|triton|cuda)_' <<< "$names")
other_names=$(grep -E '^(jax|cupy|triton|cuda)_' <<< "$names")
[ -n "$torch_names" ] && (cd "$here/programs" && python _time.py "$out/torch.json" $torch_names)
[ -n "$other_names" ] && python "$here/time_others.py" "$out" $other_names
python - "$out" << 'END'
import json, sys
from pathlib import Path

out = Path(sys.argv[1])
kept = out / "measured.json"
measured = json.loads(kept.read_text()) if kept.exists() else {}
for file in (out / "torch.json", out / "others.json"):
    timed = json.loads(file.read_text()) if file.exists() else {"programs": {}}
    for name, variants in timed["programs"].items():
        times = {
            variant: [round(ms, 4) for ms in (told["mean_ms"], *told["spread_ms"])]
            for variant, told in variants.items()
            if isinstance(told, dict) and "mean_ms" in told
        }
        if {"fault", "fixed"} <= times.keys() or (times and not variants["cause"]):
            measured[name] = times | {"machine": timed["device"]}
        else:
            print(f"{name}: not timed", file=sys.stderr)
rows = (f"{json.dumps(name)}: {json.dumps(times)}" for name, times in sorted(measured.items()))
kept.write_text("{\n" + ",\n".join(rows) + "\n}\n")
END
echo "$(ls "$out/captures" | wc -l) captures; small ones for the repository: python $here/store.py $out/captures FOLDER"
