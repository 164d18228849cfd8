#!/usr/bin/env bash
# Measures the fresh scripts on a host with two GPUs: one file a program and rank in $OUT/predict.
#   OUT=/tmp/out bash benchmarks/prediction/gpu.sh
here=$(cd "$(dirname "$0")" && pwd)
OUT=$(realpath "$OUT")
raw=$(mktemp -d)
mkdir -p "$OUT/predict"
export OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONPATH="$here:$PYTHONPATH"
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
cd "$raw"

single() { # GPU NAME SCRIPT ARGUMENTS...
  local gpu=$1 name=$2 script=$3
  shift 3
  CUDA_VISIBLE_DEVICES=$gpu timeout 140 python3 "$here/measure.py" "$raw" "$name" "$here/$script" "$@" \
    >"$name.log" 2>&1 || tail -c 400 "$name.log" >"$name.failed"
}

pair() { # NAME SCRIPT ARGUMENTS...
  local name=$1 script=$2
  shift 2
  timeout 140 torchrun --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 \
    "$here/measure.py" "$raw" "$name" "$here/$script" "$@" \
    >"$name.log" 2>&1 || tail -c 400 "$name.log" >"$name.failed"
}

# At most eight files come back from such a host: all figures in one.
collect() {
  python3 - "$raw" "$OUT/predict/fresh_measured.json" <<'P'
import glob, json, os, sys
folder, path = sys.argv[1:]
answer = {}
for file in sorted(glob.glob(os.path.join(folder, "*.json"))):
    answer[os.path.basename(file)[:-5]] = json.load(open(file))
for file in sorted(glob.glob(os.path.join(folder, "*.failed"))):
    answer[os.path.basename(file)] = {"error": open(file, errors="replace").read()}
json.dump(answer, open(path, "w"), indent=1)
P
}
trap 'collect; exit 1' INT TERM

# Alone first: what two ranks take outside the allocator.
pair ddp_gpt fresh/ddp_gpt.py

(
  pair ddp_gpt_view fresh/ddp_gpt.py --view
  pair fsdp2_llama fresh/fsdp2_llama.py
  pair fsdp2_llama_fp32 fresh/fsdp2_llama.py --fp32
) &
(
  pair ddp_gpt_accumulate fresh/ddp_gpt.py --accumulate 2
  pair fsdp2_llama_keep fresh/fsdp2_llama.py --keep
  pair fsdp2_llama_checkpoint fresh/fsdp2_llama.py --checkpoint
) &
(
  pair ddp_resnet fresh/ddp_resnet.py
  pair fsdp2_plain fresh/fsdp2_plain.py
) &
single 0 workspaces workspaces.py "$OUT/predict/workspaces.json" &
gpu=0
for name in accelerate_bert clip compiled dcgan ddpm distill dqn hf_trainer lightning_vision \
  lora_generate moe nanogpt nerf packed_lstm pinn ppo pyg_graphs segmentation seq2seq triplet tta; do
  single $gpu "$name" "fresh/$name.py" &
  gpu=$((1 - gpu))
done
single 0 trainer_bf16 programs.py trainer_bf16 &
wait
collect
