"""Which devices are here, and what each source says about their memory."""

from __future__ import annotations

from typing import Final

from ullage.devices import host
from ullage.devices.base import DeviceReader, Platform

READERS: Final[dict[Platform, DeviceReader]] = {"host": host}
