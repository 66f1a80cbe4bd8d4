"""Settings for somebody's own recordings, found by trying."""
