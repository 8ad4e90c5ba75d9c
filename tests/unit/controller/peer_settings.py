"""The settings of a controller that say which peer it is."""

from __future__ import annotations

WHO = (
    "controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-h0:9878;n1-h-1:9878;n2-127.0.0.1:9878\n"
    "controllerDLegerSelfId=n1\n"
)
