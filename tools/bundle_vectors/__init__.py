"""The cases that ``tools.make_bundle_vectors`` writes: what is done to a bundle, and what must come of it."""
