"""Around the library: replay and tuning of recordings, the live view, the demo. Nothing of the library needs them."""
