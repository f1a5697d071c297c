#!/usr/bin/env bash
# Evaluation: a model plays held-out tasks with the tools; success with its standard error, counts by outcome.
#
#   ./eval_example.sh RUN_NAME [--OPTION VALUE ...]
#
# Evaluates the newest complete checkpoint of output/RUN_NAME with the options of that run. With MODEL_PATH or BASE_URL
# it starts a new evaluation named RUN_NAME instead. Flags after RUN_NAME win; `agentrl eval --help` lists all.
#
# Environment:
#   MODEL_PATH       folder of a model (also tokenizer and chat template for BASE_URL)
#   BASE_URL         http://HOST:PORT of an engine that already runs (agentrl serve)
#   EVAL_FILE        JSONL of held-out tasks                  (that of the run; assets/sums_heldout.jsonl)
#   MCP_MANAGER_URL  stdio:COMMAND, builtin:NAME or a mcpServers file  (that of the run; builtin:calculator)
#   AGENT_CONFIG     agent_config.yml of browse and scorer agents      (that of the run; none)
#   DB               store of the evaluation                  (SQLite in its folder)
#   MACHINE_RANK     number of this machine, for the log      (0)
#   LOG_LEVEL        DEBUG, INFO, WARNING or ERROR            (INFO)
#   PYTHON           interpreter                              (.venv of this checkout, else python)
#   NUM_PROCESSES, NUM_MACHINES, MASTER_ADDR, MASTER_PORT are those of training; an evaluation needs one machine.
#   NCCL_*, SWANLAB_*  reach every process as they are
#
# Writes logs/as/RUN_NAME_eval_MACHINE_RANK.log and a run folder of its own, output/RUN_NAME-eval-STEP/ or
# output/RUN_NAME/ (with a number where that is taken): results.json, run.db, logs/ (one per process).
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$ROOT/assets/launch.sh"
require_run_name "$@"
RUN_NAME="$1"
shift

OPTIONS=()
if [ -n "${MODEL_PATH:-}${BASE_URL:-}" ]; then
  EVAL_FILE="${EVAL_FILE:-$ROOT/assets/sums_heldout.jsonl}"
  MCP_MANAGER_URL="${MCP_MANAGER_URL:-builtin:calculator}"
  OPTIONS=(--run_name "$RUN_NAME" --model_name_or_path "${MODEL_PATH:-$SMALL_MODEL}")
else
  OPTIONS=("$RUN_NAME")
fi
if [ -n "${BASE_URL:-}" ]; then OPTIONS+=(--engine_url "$BASE_URL"); fi
if [ -n "${EVAL_FILE:-}" ]; then OPTIONS+=(--eval_file "$EVAL_FILE"); fi
if [ -n "${MCP_MANAGER_URL:-}" ]; then OPTIONS+=(--mcp_manager_url "$MCP_MANAGER_URL"); fi
if [ -n "${AGENT_CONFIG:-}" ]; then OPTIONS+=(--agent_config_path "$AGENT_CONFIG"); fi
if [ -n "${DB:-}" ]; then OPTIONS+=(--db_connection_string "$DB"); fi

logged eval "$PYTHON" -m agentrl eval "${OPTIONS[@]}" "$@"
