"""From readings that disagree to one number, and a ledger that adds up to it."""
