"""Programs of the suite, by subject."""
