"""Real processes: a pool of ranks inside torch.distributed, which never runs in the kernel."""
