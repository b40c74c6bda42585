"""B23: request and response."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Serve
from tests.conformance.hooks import Policy
from tests.conformance.marks import both_versions
from tests.conformance.server import Server


@both_versions
def test_b23__forwarded_untouched(serve: Serve, version: int) -> None:
    """Whether the Response Topic exists, or the requester may publish there, is not looked at."""
    server = serve(hooks=[Policy(publish={"no": 0x87}, subscribe={"no": 0x87}, unreadable={"no"})])
    client = server.connect("s", version)
    client.subscribe("t", qos=1)
    requester = server.connect("q")
    for response_topic in ("nowhere", "no", "$SYS/x", "$share/g/t", "a//b/"):
        asked = {"response_topic": response_topic, "correlation_data": b"\0\xff"}
        requester.publish("t", b"x", 1, **asked)
        client.expect("PUBLISH", payload="x", properties=asked if version == 5 else {})
    client.expect_nothing()


def test_b23__response_information(serve: Serve) -> None:
    server = serve(response_information="resp/{client_id}/")
    for asked, wanted in ((None, None), (0, None), (1, "resp/c/"), (1, "resp/c/")):  # stable, too
        named = {} if asked is None else {"request_response_information": asked}
        client = server.connect("c", clean_start=False, session_expiry_interval=60, **named)
        assert client.connack is not None
        assert client.connack.properties.get("response_information") == wanted
        client.drop()
    client = server.connect("", request_response_information=1)
    assert client.connack is not None
    assert client.connack.properties["response_information"] == f"resp/{client.client_id}/"


def test_b23__no_response_information_without_a_template(server: Server) -> None:
    client = server.connect("c", request_response_information=1)
    assert client.connack is not None and "response_information" not in client.connack.properties


def test_b23__a_whole_exchange(serve: Serve) -> None:
    """The requester is authorized for the topics below its Response Information."""
    server = serve(response_information="resp/{client_id}/")
    requester = server.connect("q", request_response_information=1)
    assert requester.connack is not None
    topic_name = requester.connack.properties["response_information"] + "1"
    requester.subscribe(topic_name, qos=1)
    responder = server.connect("r")
    responder.subscribe("ask", qos=1)
    requester.publish("ask", b"?", 1, reason=0x00, response_topic=topic_name, correlation_data=b"7")
    asked = responder.expect("PUBLISH", payload="?").properties
    responder.publish(
        asked["response_topic"], b"!", 1, reason=0x00, correlation_data=asked["correlation_data"]
    )
    requester.expect("PUBLISH", topic_name=topic_name, payload="!", correlation_data=b"7")


@pytest.mark.parametrize("qos", [1, 2])
def test_b23__no_matching_subscribers(server: Server, qos: int) -> None:
    requester = server.connect("q")
    requester.publish("ask", b"?", qos, reason=0x10, response_topic="r")
    responder = server.connect("r")
    responder.subscribe("ask")
    requester.publish("ask", b"?", qos, reason=0x00, response_topic="r")
    responder.unsubscribe("ask")
    requester.publish("ask", b"?", qos, reason=0x10, response_topic="r")
