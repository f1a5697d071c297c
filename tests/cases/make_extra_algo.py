"""Writes extra_advantages.json, extra_losses.json and extra_masks.jsonl next to itself; run it after changing a case.

The expected values come from the formulas of README.md in plain Python (fractions, scalar loops, a dictionary trie) and
share no code with the package.
"""

import json
import math
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).parent
getcontext().prec = 40
EPS = Decimal("1e-6")
SPECIAL = {"NaN", "Infinity", "-Infinity"}

# --- advantages --------------------------------------------------------------------------------------------------

ADVANTAGES = [
    ("verl-project/verl#7581", "leave-one-out of a single sample is 0, not its raw score", [2.1756]),
    ("huggingface/trl#2832", "1, 1, 2", [1, 1, 2]),
    ("NVIDIA-NeMo/RL#4161", "seven equal rewards that are not representable and one other: no blow-up", [0.35] * 7 + [0.95]),
    ("own", "booleans are rewards", [True, False, False, True]),
    ("own", "nothing but NaN", ["NaN", "NaN", "NaN"]),
    ("own", "the two valid rewards are equal", [0.5, None, 0.5]),
    ("own", "a difference of 1e-9 is a difference; eps dominates the spread", [0.0, 1e-9]),
    ("own", "rewards around 2^40", [2**40, 2**40 + 1, 2**40 + 2, 2**40 + 5]),
    ("own", "minus infinity is excluded", [0.25, "-Infinity", 0.75, 0.5]),
    ("own", "zero and minus zero are equal", [0.0, -0.0]),
    ("own", "one success in sixteen", [1] + [0] * 15),
    ("own", "three valid among many excluded", [None, "NaN", 3, "Infinity", 1, None, 2]),
]


def valid(reward):
    return reward is not None and reward not in SPECIAL


def advantages(rewards, name):
    kept = [Fraction(r) for r in rewards if valid(r)]
    n, result = len(kept), []
    for reward in rewards:
        if not valid(reward):
            result.append(None)
        elif n < 2:
            result.append(0.0)
        elif name == "leave_one_out":
            result.append(float(Fraction(reward) - (sum(kept) - Fraction(reward)) / (n - 1)))
        else:
            centred = Fraction(reward) - sum(kept) / n
            if name != "mean":
                variance = sum((r - sum(kept) / n) ** 2 for r in kept) / (n - int(name[-1]))
                std = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
                centred = Fraction((Decimal(centred.numerator) / Decimal(centred.denominator)) / (std + EPS))
            result.append(float(centred))
    return result


def advantage_cases():
    for number, (source, note, rewards) in enumerate(ADVANTAGES, 1):
        kept = [float(r) for r in rewards if valid(r)]
        expected = {name: advantages(rewards, name) for name in ("mean", "mean_std_ddof0", "mean_std_ddof1", "leave_one_out")}
        expected |= {
            "excluded": [i for i, r in enumerate(rewards) if not valid(r)],
            "usable": len(kept) >= 2,
            "zero_variance": bool(kept) and min(kept) == max(kept),
        }
        yield {"id": f"adx-{number:03}", "source": source, "rewards": rewards, "expected": expected, "note": note}


# --- losses ------------------------------------------------------------------------------------------------------


def sequence(ratios, advantage, logprobs=None, mask=None, **more):
    """A sequence given by its ratios; log-probs default to a fixed pattern."""
    lp = logprobs or [-0.3 - 0.17 * i for i in range(len(ratios))]
    base = [None if r is None else round(x - math.log(r), 9) for x, r in zip(lp, ratios)]
    return {"logprobs": lp, "old_logprobs": base, "mask": mask or [1] * len(lp), "advantages": [advantage] * len(lp), **more}


def renamed(sequences):
    """The same base log-probs as those of the rollout engine."""
    return [{("behavior_logprobs" if k == "old_logprobs" else k): v for k, v in s.items()} for s in sequences]


CLIP = {"epsilon": 0.2, "epsilon_higher": 0.1}
LOSSES = [
    ("grpo", "callsys/GMPO#4", "a large ratio with a negative advantage is not clipped: the clip is one-sided",
     {**CLIP, "reduction": "token_mean"}, [sequence([4.0, 0.5, 1.1], -1.0), sequence([0.25, 2.0, 0.9], 1.0)]),
    ("grpo", "huggingface/trl#5343", "rows without a trained token give 0, not 0/0, and count in the mean",
     {**CLIP, "reduction": "sequence_mean"},
     [sequence([1.1, 0.9], 0.5, mask=[0, 0]), sequence([1.1, 1.5], 0.5), sequence([2.0], -0.5, mask=[0])]),
    ("grpo", "allenai/open-instruct#1685", "values at masked tokens are never looked at, whatever they are",
     {**CLIP, "reduction": "token_mean"}, [sequence([None, 1.2, None, 0.7], 1.5, mask=[0, 1, 0, 1])]),
    ("dapo", "PrimeIntellect-ai/prime-rl#583", "long and short sequences: one denominator for the whole batch",
     {"epsilon": 0.2, "epsilon_higher": 0.08, "reduction": "token_mean"},
     [sequence([1.0 + 0.03 * i for i in range(11)], 0.7), sequence([0.85], -2.1), sequence([1.25, 0.75], 0.4)]),
    ("dr_grpo", "verl-project/verl#3741", "divided by the constant and by the number of sequences",
     {**CLIP, "reduction": "constant", "constant": 8}, [sequence([1.1] * 3, 1.0), sequence([0.9] * 5, -1.0), sequence([1.0], 2.0)]),
    ("gspo", "MakazhanAlpamys/Soup#723", "masked tokens do not enter the ratio of the sequence",
     {**CLIP, "reduction": "sequence_mean"},
     [sequence([50.0, 1.2, 1.1, 0.01], 1.0, mask=[0, 1, 1, 0]), sequence([1.0, 0.6, 0.7], -1.0)]),
    ("gspo", "own", "one token: the ratio of the sequence is that of the token",
     {**CLIP, "reduction": "sequence_mean"}, [sequence([1.25], 1.0), sequence([1.4], 1.0), sequence([0.7], -1.0)]),
    ("gspo", "own", "clipped tokens in a sequence whose mean ratio is inside the limits keep their gradient",
     {**CLIP, "reduction": "token_mean"}, [sequence([3.0, 1 / 3, 1.0], 1.0), sequence([0.3, 4.0], -0.6)]),
    ("cispo", "NovaSky-AI/SkyRL#1928", "the cap is an absolute ratio: 5, not 1 + 5",
     {"cap_low": 0.0, "cap_high": 5.0, "reduction": "token_mean"}, [sequence([4.9, 5.1, 5.9, 7.0], 1.0), sequence([5.5, 0.02], -1.0)]),
    ("cispo", "thinking-machines-lab/tinker-cookbook#763", "a lower cap lifts small weights; every token keeps a gradient",
     {"cap_low": 0.5, "cap_high": 2.0, "reduction": "token_mean"}, [sequence([0.1, 0.6, 3.0], -1.0), sequence([0.2, 1.0], 1.0)]),
    ("minirl", "own", "masked by pi/pi_old although pi/mu is 1, and capped where only pi/mu is large",
     {**CLIP, "is_cap": 2.0, "reduction": "token_mean"},
     [sequence([1.5, 1.0, 0.6], 1.0, behavior_logprobs=[-0.3, -3.47, -0.64]),
      sequence([1.5, 1.0, 0.6], -1.0, behavior_logprobs=[-0.3, -3.47, -0.64])]),
    ("minirl_reference", "own", "tokens from a later step do not widen the limits beyond those of age 0",
     {**CLIP, "importance_weight_cap_ratio": 2.0, "out_of_date_decay": 0.5, "current_step": 10, "reduction": "sequence_sum"},
     renamed([sequence([1.55, 1.55, 1.65, 1.25], 1.0, sampled_at_step=[10, 8, 14, 8]),
              sequence([0.65, 0.65, 0.55, 0.9], -1.0, sampled_at_step=[10, 8, 14, 8])])),
    ("minirl_reference", "own", "a lower limit below 0 never acts",
     {**CLIP, "importance_weight_cap_ratio": 6.0, "reduction": "token_mean"},
     renamed([sequence([0.01, 0.5, 3.0], -1.0), sequence([2.7, 2.9, 0.01], 1.0)])),
    ("cross_entropy", "own", "negative advantages are ignored, rows without tokens count",
     {"reduction": "sequence_sum"}, [sequence([1.0, 1.0], -5.0), sequence([1.0], 1.0, mask=[0])]),
]  # fmt: skip


def limits(name, o, age):
    k = o.get("importance_weight_cap_ratio", 4.0)
    if o.get("strict_in_bound"):
        k = 1.0
    elif o.get("out_of_date_decay") is not None:
        k *= math.exp(min(-age * o["out_of_date_decay"], 0.0))
    return 1 - o["epsilon"] * k, 1 + (o["epsilon"] + o["epsilon_higher"]) * k


def past(ratio, a, low, high):
    return (a > 0 and ratio > high) or (a < 0 and ratio < low)


def token(name, o, lp, base, mu, a, s, age):
    """(loss, d loss / d lp, stopped) of one trained token."""
    if name == "cross_entropy":
        return -lp, -1.0, False
    r = math.exp(lp - base)
    if name == "cispo":
        weight = min(max(r, o["cap_low"]), o["cap_high"])
        return -weight * a * lp, -weight * a, False
    low, high = 1 - o.get("epsilon", 0), 1 + o.get("epsilon", 0) + o.get("epsilon_higher", 0)
    if name.startswith("minirl"):
        weight = math.exp(lp - mu)
        if name == "minirl_reference":
            low, high = limits(name, o, age)
        if past(r, a, low, high):
            return 0.0, 0.0, True
        weight = weight if o.get("is_cap") is None else min(weight, o["is_cap"])
        return -weight * a * lp, -weight * a, False
    r = s if name == "gspo" else r
    if past(r, a, low, high):
        return -min(max(r, low), high) * a, 0.0, True
    return -r * a, -r * a, False


def loss_cases():
    for number, (name, source, note, o, sequences) in enumerate(LOSSES, 1):
        losses, grads, stops = [], [], []
        total = sum(sum(q["mask"]) for q in sequences)
        loss = 0.0
        for q in sequences:
            n = sum(q["mask"])
            weight = {
                "token_mean": 1 / max(total, 1),
                "sequence_mean": 1 / (len(sequences) * max(n, 1)),
                "sequence_sum": 1 / len(sequences),
                "constant": 1 / (len(sequences) * o.get("constant", 1)),
            }[o["reduction"]]
            base = q.get("old_logprobs") or q["behavior_logprobs"]
            mu = q.get("behavior_logprobs") or base
            trained = [t for t, m in enumerate(q["mask"]) if m]
            s = math.exp(sum(q["logprobs"][t] - base[t] for t in trained) / max(n, 1))
            rows = [[0.0] * len(q["mask"]), [0.0] * len(q["mask"]), [0] * len(q["mask"])]
            for t in trained:
                age = o.get("current_step", 0) - q.get("sampled_at_step", [0] * len(q["mask"]))[t]
                value, slope, stopped = token(name, o, q["logprobs"][t], base[t], mu[t], q["advantages"][t], s, age)
                rows[0][t], rows[1][t], rows[2][t] = value, weight * slope, int(stopped)
                loss += weight * value
            losses.append(rows[0]), grads.append(rows[1]), stops.append(rows[2])
        expected = {"token_loss": losses, "stopped": stops, "loss": loss, "grad": grads}
        yield {"id": f"lox-{number:03}", "loss": name, "source": source, "options": o, "sequences": sequences, "expected": expected, "note": note}


# --- masks -------------------------------------------------------------------------------------------------------


def said(*ids, logprobs="all", **more):
    return {"role": "assistant", "token_ids": list(ids), "sampled": True, "logprobs": [-0.5] * len(ids) if logprobs == "all" else logprobs, **more}


def given(*ids):
    return {"role": "user", "token_ids": list(ids), "sampled": False, "logprobs": None}


def call(prompt, output, **more):
    return {"prompt_ids": prompt, "output_ids": output, "logprobs": [-0.25 * (i + 1) for i in range(len(output))], **more}


def segment(ids, trained, logprobs, turns):
    """``trained``: index -> log-prob of the sampled tokens."""
    return {"ids": ids, "loss_mask": [int(i in trained) for i in range(len(ids))],
            "behavior_logprobs": [logprobs.get(i) for i in range(len(ids))], "turns": turns, "positions": list(range(len(ids)))}  # fmt: skip


def one(ids, at, turns):
    return segment(ids, set(at), at, turns)


MASKS = [
    ("events", "resumed_masked", "THUDM/slime#1440", "the part sampled before the restart is kept as context, the new part is trained",
     [given(1, 2), said(10, 11, train=False), said(12, 902)],
     {"ids": [1, 2, 10, 11, 12, 902], "loss_mask": [0, 0, 0, 0, 1, 1], "behavior_logprobs": [None, None, -0.5, -0.5, -0.5, -0.5]}),
    ("events", "logprob_null_inside", "huggingface/trl#6693", "an engine that sends null for one token: not trained as 0",
     [given(1), said(10, 11, logprobs=[-0.5, None])], {"error": "logprob_not_finite"}),
    ("events", "logprob_infinite", "PrimeIntellect-ai/prime-rl#2085", "minus infinity is no log-prob of a sampled token",
     [given(1), said(10, logprobs=["-Infinity"])], {"error": "logprob_not_finite"}),
    ("events", "too_many_logprobs", "own", "three log-probs for two tokens", [given(1), said(10, 11, logprobs=[-1.0, -1.0, -1.0])], {"error": "length_mismatch"}),
    ("events", "nothing_sampled", "own", "only context", [given(1, 2), given(3)],
     {"ids": [1, 2, 3], "loss_mask": [0, 0, 0], "behavior_logprobs": [None, None, None]}),
    ("events", "multi_turn_mask", "THUDM/slime#1563", "every assistant stretch is trained, not only the last",
     [given(1), said(10), given(2), said(11), given(3), said(12)],
     {"ids": [1, 10, 2, 11, 3, 12], "loss_mask": [0, 1, 0, 1, 0, 1], "behavior_logprobs": [None, -0.5, None, -0.5, None, -0.5]}),
    ("turns", "same_prompt_twice", "own", "two samples of one prompt are two segments",
     [call([1, 2], [10]), call([1, 2], [11])],
     {"segments": [one([1, 2, 10], {2: -0.25}, [0]), one([1, 2, 11], {2: -0.25}, [1])]}),
    ("turns", "longest_prefix", "own", "of two segments that are prefixes the longer one goes on",
     [call([1, 10, 2], [11]), call([1], [10]), call([1, 10, 2, 11, 3], [12])],
     {"segments": [one([1, 10, 2, 11, 3, 12], {3: -0.25, 5: -0.25}, [0, 2]), one([1, 10], {1: -0.25}, [1])]}),
    ("turns", "history_rewritten", "huggingface/trl#6250", "reasoning (50) dropped from the history: each turn opens a segment",
     [call([1], [50, 10]), call([1, 10, 2], [50, 11]), call([1, 10, 2, 11, 3], [50, 12])],
     {"segments": [one([1, 50, 10], {1: -0.25, 2: -0.5}, [0]), one([1, 10, 2, 50, 11], {3: -0.25, 4: -0.5}, [1]),
                   one([1, 10, 2, 11, 3, 50, 12], {5: -0.25, 6: -0.5}, [2])]}),
    ("turns", "empty_output", "own", "a call that sampled nothing leaves its prompt as context",
     [call([1, 2], []), call([1, 2, 3], [10])], {"segments": [one([1, 2, 3, 10], {3: -0.25}, [0, 1])]}),
    ("turns", "logprobs_missing", "OpenPipe/ART#127", "no log-probs at all", [call([1], [10], logprobs=None)], {"error": "logprobs_missing"}),
]  # fmt: skip

TREES = [
    ("prefix_inserted_later", "own", "a row that is a prefix of an earlier one adds nothing", [([1, 2, 3, 4], 2), ([1, 2, 3], 2), ([1, 2], 1)]),
    ("single_tokens", "own", "rows of one token", [([1], 0), ([1], 0), ([2], 0)]),
    ("interleaved_groups", "own", "rows of two prompts in turn", [([1, 1, 5], 2), ([2, 1, 5], 2), ([1, 1, 6], 2), ([2, 1, 5, 7], 2), ([1, 2, 5], 2)]),
    ("ids_compare_as_numbers", "own", "ids of one, two and three bytes", [([300, 7, 70000], 1), ([300, 7, 70001], 1), ([44, 7], 1), ([300, 256], 1)]),
    ("deep_chain_then_fan", "own", "a long chain with five ends", [([9] * 12 + [k], 12) for k in range(5)]),
]  # fmt: skip


def tree_case(rows):
    """Insert row by row into a dictionary trie."""
    index, ids, parent, positions, trained_by, row_index = {}, [], [], [], [], []
    for row in rows:
        here, path = -1, []
        for depth, (token_id, trained) in enumerate(zip(row["ids"], row["loss_mask"])):
            if (here, token_id) not in index:
                index[here, token_id] = len(ids)
                ids.append(token_id), parent.append(here), positions.append(depth), trained_by.append(0)
            here = index[here, token_id]
            trained_by[here] += trained
            path.append(here)
        row_index.append(path)
    return {"total_tokens": sum(len(r["ids"]) for r in rows), "unique_tokens": len(ids), "ids": ids, "parent": parent,
            "positions": positions, "trained_by": trained_by, "row_index": row_index}  # fmt: skip


def mask_cases():
    for kind, fault, source, note, given_, expected in MASKS:
        yield {"kind": kind, "fault": fault, "source": source, kind: given_, "expected": expected, "note": note}
    for fault, source, note, short in TREES:
        rows = [{"ids": ids, "loss_mask": [int(i >= first) for i in range(len(ids))]} for ids, first in short]
        yield {"kind": "tree", "fault": fault, "source": source, "rows": rows, "expected": tree_case(rows), "note": note}


def main():
    head = {"about": "see README.md, section advantages", "eps": float(EPS), "tolerance": 1e-9}
    write("extra_advantages.json", json.dumps({**head, "cases": list(advantage_cases())}, indent=1))
    meta = {"about": "see README.md, section losses", "dtype": "float64", "tolerance": {"float64": 1e-10, "float32": 2e-5}}
    write("extra_losses.json", json.dumps({"meta": meta, "cases": list(loss_cases())}, indent=1))
    lines = [json.dumps({"id": f"mkx-{n:03}", **case}) for n, case in enumerate(mask_cases(), 1)]
    write("extra_masks.jsonl", "\n".join(lines))


def write(name, text):
    (HERE / name).write_text(text + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
