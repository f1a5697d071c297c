"""Episodes, groups and the sampler."""
