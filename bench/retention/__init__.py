"""What keeping KV blocks of conversations that are likely to go on soon is worth, simulated and on real engines."""
