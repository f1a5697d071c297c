"""A run on simulated time: the real samplers, pace, routing and store rules on engines and tools that only wait."""

from agentrl.simulate.figures import Figures
from agentrl.simulate.scenario import Rules, Scenario, SimulatedFleet
from agentrl.simulate.simulation import Simulated, simulate
from agentrl.simulate.workload import Workload

__all__ = ["Figures", "Rules", "Scenario", "Simulated", "SimulatedFleet", "Workload", "simulate"]
