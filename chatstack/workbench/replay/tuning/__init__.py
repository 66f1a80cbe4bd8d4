"""Search for settings that suit a user's own recordings."""
