"""Section 4.7 in a few lines, for tests that publish at random."""


def matches(topic_filter: str, topic_name: str) -> bool:
    """Level by level; a leading $ hides a name from a leading wildcard."""
    wanted, levels = topic_filter.split("/"), topic_name.split("/")
    if topic_name.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at == len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)
