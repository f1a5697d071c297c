# What the example scripts share; they source it with ROOT set. bash 3.2 (macOS) is enough.

PYTHON="${PYTHON:-}"
if [ -z "$PYTHON" ] && [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -x "$ROOT/.venv/bin/python" ]; then
  PYTHON="$ROOT/.venv/bin/python"
fi
PYTHON="${PYTHON:-$(command -v python || command -v python3)}"
export PYTHONPATH="$ROOT/src${PYTHONPATH:+:$PYTHONPATH}"

SMALL_MODEL="$ROOT/src/agentrl/models/tiny_data"
NUM_PROCESSES="${NUM_PROCESSES:-1}"
NUM_MACHINES="${NUM_MACHINES:-1}"
MACHINE_RANK="${MACHINE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
if [ "$NUM_MACHINES" -gt 1 ]; then
  MASTER_PORT="${MASTER_PORT:-29500}"
else
  MASTER_PORT="${MASTER_PORT:-0}" # any free one
fi

# require_run_name "$@": the first word names the run.
require_run_name() {
  case "${1:-}" in
    '' | -*)
      echo "usage: $0 RUN_NAME [--OPTION VALUE ...]   (the header of $0 lists the variables it reads)" >&2
      exit 2
      ;;
  esac
}

# logged KIND COMMAND...: become COMMAND; what it prints also goes to this node's log. The log's writer ignores
# signals, so that Ctrl-C reaches the command and its last words still reach the log.
logged() {
  local log="logs/as/${RUN_NAME}_$1_${MACHINE_RANK}.log"
  shift
  mkdir -p logs/as
  exec > >(trap '' INT TERM HUP && exec tee -a "$log") 2>&1
  exec "$@"
}

# train OPTIONS...: one process of `agentrl train`, or as many as accelerate starts on all machines. Either way local
# rank 0 starts this node's engine and sampler.
train() {
  local total=$((NUM_PROCESSES * NUM_MACHINES))
  if [ "$total" -le 1 ]; then
    logged train "$PYTHON" -m agentrl train "$@"
  fi
  logged train "$PYTHON" -m accelerate.commands.launch --config_file "$ROOT/assets/fsdp2_dst.yml" \
    --num_processes "$total" --num_machines "$NUM_MACHINES" --machine_rank "$MACHINE_RANK" \
    --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
    -m agentrl train --data_parallel_size "$total" "$@"
}
