"""B30: what CONNACK says."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import MqttError
from broker.hook.base import ClientInfo, HookBase
from tests.conformance import wire
from tests.conformance.authentication import METHOD
from tests.conformance.conftest import Serve
from tests.conformance.hooks import ConnackProperties, EnhancedAuth
from tests.conformance.refusals import Refusal, refusals
from tests.conformance.server import BARE, Server

DEFAULT = {"receive_maximum": 1024, "maximum_packet_size": 1 << 20, "topic_alias_maximum": 64}


def test_b30__defaults_of_the_broker(server: Server) -> None:
    connack = server.client().connect("c")
    assert connack.properties == DEFAULT


def test_b30__nothing_where_nothing_differs(serve: Serve) -> None:
    server = serve(**BARE)
    names = ("request_response_information", "request_problem_information", "receive_maximum")
    properties = {"session_expiry_interval": 60, "topic_alias_maximum": 5, **dict.fromkeys(names, 1)}
    for given in ({}, properties):
        connack = server.client().connect("c", keep_alive=30, **given)
        assert connack.raw == bytes.fromhex("20 03 00 00 00")


TOLD: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # settings, CONNECT, CONNACK
    ({"session_expiry_interval": 9}, {"session_expiry_interval": 10}, {"session_expiry_interval": 9}),
    ({"session_expiry_interval": 9}, {"session_expiry_interval": 9}, {}),
    ({"receive_maximum": 65534}, {}, {"receive_maximum": 65534}),
    ({"maximum_qos": 1}, {}, {"maximum_qos": 1}),
    ({"maximum_qos": 0}, {}, {"maximum_qos": 0}),
    ({"retain_available": False}, {}, {"retain_available": 0}),
    ({"maximum_packet_size": 268435459}, {}, {"maximum_packet_size": 268435459}),
    ({}, {"client_id": ""}, {"assigned_client_identifier": "?"}),
    ({"topic_alias_maximum": 1}, {}, {"topic_alias_maximum": 1}),
    ({"wildcard_subscription_available": False}, {}, {"wildcard_subscription_available": 0}),
    ({"subscription_identifier_available": False}, {}, {"subscription_identifier_available": 0}),
    ({"shared_subscription_available": False}, {}, {"shared_subscription_available": 0}),
    ({"server_keep_alive": 9}, {"keep_alive": 10}, {"server_keep_alive": 9}),
    ({"server_keep_alive": 9}, {"keep_alive": 0}, {"server_keep_alive": 9}),
    ({"server_keep_alive": 9}, {"keep_alive": 9}, {}),
    ({"response_information": "r"}, {"request_response_information": 1}, {"response_information": "r"}),
    ({"response_information": "r"}, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "asked", "told"), TOLD)
def test_b30__each_property_where_it_differs(
    serve: Serve, settings: dict[str, Any], asked: dict[str, Any], told: dict[str, Any]
) -> None:
    server = serve(**{**BARE, **settings})
    connack = server.client().connect(**{"client_id": "c", **asked})
    if told == {"assigned_client_identifier": "?"}:
        assert list(connack.properties) == list(told)
    else:
        assert connack.properties == told


def test_b30__enhanced_authentication_and_user_properties(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1), ConnackProperties(("k", "v"))], **BARE)
    connack = server.client().connect("c", **METHOD, authentication_data=b"proof")
    assert connack.properties == {**METHOD, "authentication_data": b"welcome", "user_property": [("k", "v")]}


IN_REFUSALS = {
    "reason_string",
    "user_property",
    "server_reference",
    "authentication_method",
    "authentication_data",
}
EVERYTHING = {
    **dict.fromkeys(("server_keep_alive", "session_expiry_interval", "receive_maximum"), 5),
    "response_information": "r",
    "shared_subscription_available": False,
}
ASKING = [(0x11, 1000), (0x19, 1)]


@pytest.mark.parametrize("name", refusals())
def test_b30__properties_of_a_refusal(serve: Serve, name: str) -> None:
    refusal: Refusal = refusals(properties=ASKING)[name]
    server = serve(hooks=[*refusal.hooks()], **{**EVERYTHING, **refusal.settings})
    client = server.client()
    client.send(refusal.raw)
    connack = client.expect_close(refusal.code)
    assert connack is not None and set(connack.properties) <= IN_REFUSALS
    # A CONNECT that is no CONNECT by the format need not be read as far as the limit for a Reason String.
    assert "reason_string" in connack.properties or connack.reason_code in (0x81, 0x82, 0x95)


class Redirects(HookBase):
    """Sends everybody elsewhere."""

    async def on_connect(self, client: ClientInfo, packet: Any) -> None:
        client.user_properties.append(("not", "sent"))
        code = int(packet.client_id, 16)
        raise MqttError("elsewhere", code, user_properties=[("k", "v")], server_reference="b:1883 [::1]:1883")


def test_b30__a_redirection(serve: Serve) -> None:
    server = serve(hooks=[Redirects()], **EVERYTHING)
    for code in (0x9C, 0x9D, 0x87):
        client = server.client()
        client.send(wire.connect(f"{code:x}", properties=ASKING))
        reference = None if code == 0x87 else "b:1883 [::1]:1883"
        connack = client.expect_close(code, server_reference=reference, user_property=[("k", "v")])
        assert connack is not None and set(connack.properties) <= IN_REFUSALS


def test_b30__a_refused_authentication(serve: Serve) -> None:
    server = serve(hooks=[EnhancedAuth(steps=1, reason_string="No.")], **EVERYTHING)
    client = server.client()
    client.send(wire.connect("c", properties=[*ASKING, (0x15, "X-TEST"), (0x16, b"wrong")]))
    connack = client.expect_close(0x87, reason_string="No.", authentication_data=None)
    assert connack is not None and set(connack.properties) <= IN_REFUSALS
