"""Settings of the tools that the tests use."""

from __future__ import annotations

import hypothesis

# A busy machine is no failure: examples have no deadline.
hypothesis.settings.register_profile("ullage", deadline=None)
hypothesis.settings.load_profile("ullage")
