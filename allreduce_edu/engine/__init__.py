"""The simulator: schedules and their readers. Needs numpy alone."""
