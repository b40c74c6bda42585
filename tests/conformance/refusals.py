"""Every way in which the broker refuses a CONNECT of its own accord, and the codes a hook may refuse with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.hook.base import HookBase
from tests.conformance import wire
from tests.conformance.hooks import Policy

CONNACK_CODES = wire.SERVER_REASON_CODES[wire.CONNACK]
REFUSING_CODES = sorted(CONNACK_CODES - {0x00})


def _no_hooks() -> Sequence[HookBase]:
    return ()


class Refusal(NamedTuple):
    """A CONNECT, the code of its CONNACK, and the broker that refuses it (settings, hooks)."""

    code: int
    raw: bytes
    settings: dict[str, Any] = {}  # noqa: RUF012
    hooks: Callable[[], Sequence[HookBase]] = _no_hooks


def refusals(client_id: str = "c", **kwargs: Any) -> dict[str, Refusal]:
    """By what is wrong. All for *client_id*; *kwargs* go into each CONNECT, properties as a list."""
    properties = list(kwargs.pop("properties", ()))

    def connect(more: Sequence[tuple[int, Any]] = (), **changed: Any) -> bytes:
        given = {"client_id": client_id, **kwargs, **changed}
        return wire.connect(given.pop("client_id"), properties=[*properties, *more], **given)

    return {
        "trailing bytes": Refusal(0x81, connect(tail=b"\x00")),
        "Receive Maximum 0": Refusal(0x82, connect([(0x21, 0)])),
        "data without method": Refusal(0x82, connect([(0x16, b"x")])),
        "empty ClientID": Refusal(0x85, connect(client_id=""), {"zero_length_client_id": False}),
        "long ClientID": Refusal(0x85, connect(client_id="c" * 24), {"maximum_client_id_bytes": 23}),
        "bad password": Refusal(
            0x86, connect(user_name="u", password=b"x"), {}, lambda: [Policy(credentials={"u": b"p"})]
        ),
        "anonymous": Refusal(0x87, connect(), {"anonymous": "never"}),
        "unknown method": Refusal(0x8C, connect([(0x15, "X-NONE")])),
        "will to a wildcard": Refusal(0x90, connect(will=wire.will("w/#"))),
        "will to $SYS": Refusal(0x90, connect(will=wire.will("$SYS/x"))),
        "too large": Refusal(0x95, connect(user_name="u" * 1000), {"maximum_packet_size": 1000}),
        "many User Properties": Refusal(
            0x97, connect([(0x26, ("k", "v"))] * 3), {"maximum_user_properties": 2}
        ),
        "will that is no UTF-8": Refusal(
            0x99,
            connect(will=wire.will("w", b"\xff", payload_format_indicator=1)),
            {"validate_payload_format": True},
        ),
        "Will Retain": Refusal(0x9A, connect(will=wire.will("w", retain=True)), {"retain_available": False}),
        "Will QoS": Refusal(0x9B, connect(will=wire.will("w", qos=2)), {"maximum_qos": 1}),
    }
