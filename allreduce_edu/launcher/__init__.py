"""What `python3 -m allreduce_edu` does: makes the environment and runs the four commands."""
