"""Whether a Topic Name or Topic Filter is well formed; what is in `$share/...` [MQTT5 4.7, 4.8.2]."""

from __future__ import annotations

from typing import Final

from broker.errors import MqttError, TopicFilterInvalid, TopicNameInvalid

MAXIMUM_LENGTH: Final = 65_535  # bytes of UTF-8: what the two length bytes can say [MQTT-4.7.3-3]
SHARE = "$share/"


def check_topic_name(topic_name: str) -> None:
    """Raise TopicNameInvalid if *topic_name* breaks the grammar [MQTT5 4.7].

    A limit on levels is a policy, not grammar, and is answered otherwise: see `levels`.
    """
    _check_text(topic_name, TopicNameInvalid)
    if "+" in topic_name or "#" in topic_name:
        raise TopicNameInvalid("a wildcard in a Topic Name")


def check_topic_filter(topic_filter: str) -> None:
    """Raise TopicFilterInvalid if *topic_filter* breaks the grammar of 4.7.1 or, shared, of 4.8.2.

    A limit on levels is a policy, not grammar, and is answered otherwise: see `levels`.
    """
    _check_text(topic_filter, TopicFilterInvalid)
    if topic_filter.startswith(SHARE) or topic_filter == "$share":
        share_name, _, topic_filter = topic_filter[len(SHARE) :].partition("/")
        if not share_name or "+" in share_name or "#" in share_name:
            raise TopicFilterInvalid("a ShareName that is empty or has a wildcard")
        if not topic_filter:
            raise TopicFilterInvalid("a ShareName without a Topic Filter")
    if has_wildcard(topic_filter):
        _check_wildcards(topic_filter)


def has_wildcard(topic_filter: str) -> bool:
    """Whether a `+` or `#` is in *topic_filter*; take a share prefix off first."""
    return "+" in topic_filter or "#" in topic_filter


def split_share(topic_filter: str) -> tuple[str, str]:
    """`$share/name/filter` as (name, filter), any other as ("", *topic_filter*), which must be valid.

    Case counts: `$SHARE/...`, `$shared/...` and `$queue/...` are ordinary filters [MQTT-4.8.2-1].
    """
    if not topic_filter.startswith(SHARE):
        return "", topic_filter
    share_name, _, rest = topic_filter[len(SHARE) :].partition("/")
    return share_name, rest


def levels(topic: str) -> int:
    """How many levels a Topic Name or an unshared Topic Filter has; empty ones are levels too."""
    return topic.count("/") + 1


def _check_text(topic: str, error: type[MqttError]) -> None:
    if not topic:
        raise error("an empty topic")
    if "\0" in topic:
        raise error("U+0000 in a topic")
    if topic.isascii():
        length = len(topic)
    else:
        try:
            length = len(topic.encode())
        except UnicodeEncodeError:
            raise error("a surrogate in a topic") from None
    if length > MAXIMUM_LENGTH:
        raise error(f"a topic of {length} bytes")


def _check_wildcards(topic_filter: str) -> None:
    *parents, last = topic_filter.split("/")
    if any("#" in level for level in parents) or ("#" in last and last != "#"):
        raise TopicFilterInvalid("a # that is not the whole last level")
    if any("+" in level and level != "+" for level in (*parents, last)):
        raise TopicFilterInvalid("a + that is not a whole level")
