#!/usr/bin/env bash
# GRPO: reinforcement learning of an agent with the token-level loss, the general baseline.
#
#   ./grpo_example.sh RUN_NAME [--OPTION VALUE ...]
#
# As shipped it trains the small model on this machine's CPU in about a minute. Flags after RUN_NAME win over those
# below; `agentrl train --help` lists all. A run that was stopped goes on with --resume_from_checkpoint auto.
#
# Environment:
#   MODEL_PATH       folder of a Hugging Face model           (the shipped small one)
#   TRAIN_FILE       JSONL of training tasks                  (assets/sums_train.jsonl)
#   EVAL_FILE        JSONL of held-out tasks, may be empty    (assets/sums_heldout.jsonl)
#   MCP_MANAGER_URL  stdio:COMMAND, builtin:NAME or a mcpServers file  (builtin:calculator)
#   AGENT_CONFIG     agent_config.yml of browse and scorer agents      (none)
#   DB               store, --db_connection_string            (SQLite in the run folder)
#   NUM_PROCESSES    training processes on each machine       (1; more start by accelerate)
#   NUM_MACHINES     machines                                 (1)
#   MACHINE_RANK     number of this machine                   (0)
#   MASTER_ADDR, MASTER_PORT   where machine 0 is found       (127.0.0.1, a free port; 29500 for several machines)
#   NCCL_*, SWANLAB_*          reach every process as they are
#   LOG_LEVEL        DEBUG, INFO, WARNING or ERROR            (INFO)
#   PYTHON           interpreter                              (.venv of this checkout, else python)
#
# Writes logs/as/RUN_NAME_train_MACHINE_RANK.log (one per machine) and output/RUN_NAME/: config.yaml, run.db,
# metrics.jsonl, checkpoint-N/, weights/, logs/ (one per process).
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$ROOT/assets/launch.sh"
require_run_name "$@"
RUN_NAME="$1"
shift

LOSS=(--loss_calculater GRPO --token_level_loss true)

if [ -z "${MODEL_PATH:-}" ]; then
  # The small model: a batch of 64 episodes, short answers, 40 steps.
  SIZES=(--model_name_or_path "$SMALL_MODEL" --default_prompt false --eval_sampling_params '{"temperature": 1.0}'
    --num_generations 8 --per_device_train_batch_size 64 --gradient_accumulation_steps 1
    --max_turns 3 --max_new_tokens 48 --max_prompt_tokens 256 --max_context 320 --max_tokens 320
    --max_tokens_per_microbatch 4096 --engine_slots 128 --target_concurrency 128
    --learning_rate 5e-4 --num_train_epochs 4 --max_steps 40 --save_steps 20)
else
  SIZES=(--model_name_or_path "$MODEL_PATH"
    --num_generations 8 --per_device_train_batch_size 1 --gradient_accumulation_steps 64
    --max_turns 25 --max_new_tokens 8192 --max_prompt_tokens 57344 --max_tokens 65536
    --target_concurrency 64 --gradient_checkpointing true
    --learning_rate 1e-6 --num_train_epochs 1 --save_steps 20 --eval_steps 20)
fi

OPTIONS=(--run_name "$RUN_NAME" --enable_sampling true
  --train_file "${TRAIN_FILE-$ROOT/assets/sums_train.jsonl}"
  --eval_file "${EVAL_FILE-$ROOT/assets/sums_heldout.jsonl}"
  --mcp_manager_url "${MCP_MANAGER_URL:-builtin:calculator}"
  --db_connection_string "${DB:-}")
if [ -n "${AGENT_CONFIG:-}" ]; then
  OPTIONS+=(--agent_config_path "$AGENT_CONFIG")
fi

train "${OPTIONS[@]}" "${LOSS[@]}" "${SIZES[@]}" "$@"
