"""Payloads -> values: rules, types that only ever widen, Sparkplug B."""
