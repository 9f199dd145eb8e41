"""How fast the engine is, beside the limit of the machine and what else one could use."""
