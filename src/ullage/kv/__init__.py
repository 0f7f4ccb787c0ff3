"""The KV cache: how much fits, and one that grows at fixed addresses."""
