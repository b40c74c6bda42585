"""Whether one Topic Filter matches one Topic Name, in plain lines: the oracle of the tree's tests."""

from __future__ import annotations


def match(topic_filter: str, topic_name: str) -> bool:
    """Whether *topic_filter*, without a share prefix, matches *topic_name* [MQTT5 4.7]. Both must be valid.

    A `$` at the start of the name hides it from a filter that starts with a wildcard [MQTT-4.7.2-1].
    """
    if topic_name.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    names, wanted = topic_name.split("/"), topic_filter.split("/")
    for at, level in enumerate(wanted):
        if level == "#":
            return True  # nothing at all may follow: a/# matches a
        if at == len(names) or level not in ("+", names[at]):
            return False
    return len(names) == len(wanted)
