"""Loading models, tree attention, and the small model of the quickstart."""
