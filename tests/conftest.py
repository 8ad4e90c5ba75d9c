"""Settings for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Helpers assert, too, and should show the values as tests do.
pytest.register_assert_rewrite("tests.support", "tests.unit", "tests.integration", "tests.interop")

# How long an example takes says something of the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
