"""What keeping the KV blocks of conversations that are likely to go on soon is worth, simulated and on a real engine."""
