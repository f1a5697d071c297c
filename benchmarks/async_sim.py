"""P6, simulated: asynchronous against synchronous training of one fleet, tool latency log-normal with p99/p50 = 20.

    python benchmarks/async_sim.py [--steps 24] [--seed 0]

Both play the same episodes on simulated time, with the samplers and the store's rules of a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from agentrl.simulate import Rules, Scenario, SimulatedFleet, Workload, simulate
from agentrl.simulate.distribution import Constant, LogNormal


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    latency = LogNormal(p50=2, p99=40)
    workload = Workload(turns=Constant(value=4), tool_seconds=latency, tool_timeout=600.0, seed=options.seed)
    fleet = SimulatedFleet(engines=4, engine_slots=32)
    ahead = Scenario(fleet=fleet, workload=workload, steps=options.steps)
    in_turn = replace(ahead, rules=Rules(sync_sampling=True))
    fast, slow = simulate(ahead).figures, simulate(in_turn).figures
    for name, each in (("synchronous", slow), ("asynchronous", fast)):
        ideal = min(each.engine_bound, each.trainer_bound)
        print(
            f"{name:<13} {each.groups_per_second:.3f} groups/s (ideal {ideal:.2f}), "
            f"staleness mean {each.mean_staleness:.2f}, max {each.max_staleness}; groups dropped stale "
            f"{each.stale_share:.1%}, abandoned {each.abandoned_share:.1%}; bias of tokens {each.length_bias:+.2%}, "
            f"of seconds {each.seconds_bias:+.2%}"
        )
    print(f"ratio         {fast.groups_per_second / slow.groups_per_second:.2f} (goal 2.0 at mean staleness <= 1)")


if __name__ == "__main__":
    main()
