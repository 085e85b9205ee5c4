"""What keeping the KV blocks of conversations that wait for tools is worth: in the simulator, and on a real engine."""
