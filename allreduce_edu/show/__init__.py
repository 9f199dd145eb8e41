"""Pictures of the same data: the player, its static twin, figures and questions."""
