"""What it costs to remember, measured with the official client."""
