"""The checks of `nrl_interfaces.testing.rollout`, by Protocol."""
