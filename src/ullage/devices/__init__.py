"""Which devices are here, and what each source says about their memory."""
