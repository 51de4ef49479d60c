"""The samplers beyond top-k, top-p, min-p and temperature, one file each. ``kinetic.sampling`` calls them in order."""
