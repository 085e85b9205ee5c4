"""Training and measurement of the linear safety classifier."""
