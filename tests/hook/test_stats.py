"""What `$SYS/broker/...` says of the counters."""

from __future__ import annotations

from broker.hook.stats import Stats, sys_values

NAMES = {
    "uptime": "61",
    "connections/total": "1",
    "connections/refused": "2",
    "bytes/received": "3",
    "bytes/sent": "4",
    "messages/received": "5",
    "messages/sent": "6",
    "publish/messages/received": "7",
    "publish/messages/sent": "8",
    "publish/messages/dropped": "12",
    "dropped/offline": "9",
    "dropped/queue_full": "3",
    "clients/connected": "10",
    "version": "pybroker 1",
}


def counted() -> Stats:
    stats = Stats(100.0)
    stats.connections, stats.connections_refused = 1, 2
    stats.bytes_received, stats.bytes_sent = 3, 4
    stats.messages_received, stats.messages_sent = 5, 6
    stats.publish_received, stats.publish_sent = 7, 8
    for reason, count in (("queue_full", 3), ("offline", 9)):
        for _ in range(count):
            stats.drop(reason)
    return stats


def counters(stats: Stats) -> list[str]:
    return [name for name in dir(stats) if not name.startswith("_") and not callable(getattr(stats, name))]


def test_every_counter_and_gauge_has_its_topic() -> None:
    values = sys_values(counted(), {"clients/connected": 10, "version": "pybroker 1"}, 161.9)
    assert values == {f"$SYS/broker/{name}": value for name, value in NAMES.items()}


def test_a_fresh_broker_counts_from_zero() -> None:
    values = sys_values(Stats(5.0), {}, 5.0)
    assert set(values.values()) == {"0"}
    assert not any("dropped/" in name.removeprefix("$SYS/broker/publish/messages/") for name in values)


def test_every_counter_is_told() -> None:
    """One that is added later must not be forgotten in `$SYS`."""
    told = {*sys_values(counted(), {}, 100.0).values()}
    for name in counters(counted()):
        value = getattr(counted(), name)
        assert name == "started_at" or str(value if isinstance(value, int) else value.total()) in told
