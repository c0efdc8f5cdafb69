"""Settings for all tests: property tests try the same examples in every run, and a slow machine fails none of them."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "nemo_gym", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("nemo_gym")
