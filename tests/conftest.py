"""Hypothesis for the whole suite: machines are noisy, so no example is judged by the time it takes."""

from hypothesis import settings

settings.register_profile("pybroker", deadline=None)
settings.load_profile("pybroker")
