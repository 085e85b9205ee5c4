"""The cost of stored turns, measured with the official client."""
