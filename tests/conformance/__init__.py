"""Every normative statement of MQTT 3.1.1 and 5.0 that binds a server, seen over the wire.

How to write a test
===================

The tables in `tables/` hold one statement per row; column *observable* says what a test sees. The
name of a test carries the id of its statement, and the checker (`test_coverage.py`) wants a test for
every id and an id in every name:

    MQTT-3.1.2-8 of 5.0      test_mqtt5_3_1_2_8__will_after_reset
    MQTT-3.1.2-8 of 3.1.1    test_mqtt311_3_1_2_8__will_after_reset
    X5-07, X3-01, B14        test_x5_07__<what>, test_x3_01__<what>, test_b14__<what>

A test asks for the fixture `server` (default settings) or `serve` (a factory), and runs three times:
over TCP, over TCP one byte at a time, over WebSocket with frames cut at random.
`pytest tests/conformance --transport tcp` is the quick way; `@pytest.mark.tcp_only("reason")` is
for tests of WebSocket itself, TLS, and the like. Two tests as models:

    from tests.conformance import wire
    from tests.conformance.server import Server

    def test_mqtt5_3_1_2_8__will_waits_for_its_delay(server: Server) -> None:
        watcher = server.watch("w/#")
        will = wire.will("w/a", b"gone", qos=1, will_delay_interval=2)
        client = server.connect("c", will=will, session_expiry_interval=60)
        client.drop()                                   # FIN; returns when the broker has noticed
        server.advance(1.9)                             # no sleeping: the clock is ours
        watcher.expect_nothing()
        server.advance(0.2)
        watcher.expect("PUBLISH", topic_name="w/a", payload="gone", qos=1, retain=False)

    @pytest.mark.parametrize("first", [0x80, 0x81, 0x8F])
    def test_mqtt5_3_8_1_1__wrong_flags(serve: Serve, first: int) -> None:
        server = serve(hooks=[Policy(publish={"no": 0x87})], receive_maximum=10)
        client = server.connect("c", session_expiry_interval=60)
        client.send(wire.subscribe(1, ("t", 1), first=first))
        client.expect_close(0x81)                       # DISCONNECT 0x81, then the end, within 1 s
        again = server.connect("c", clean_start=False, session_present=True)
        server.connect("p").publish("t", b"x", qos=1, reason=0x10)
        again.expect_nothing()                          # PINGREQ: PINGRESP is the very next packet

What to know
------------

- Time stands still. `advance(seconds, step=None)` moves it and looks at all deadlines after each step.
- `send` takes bytes of `wire`'s builders (or `bytes.fromhex`). `expect` checks the very next packet;
  the exchanges (`connect`, `subscribe`, `publish`, ...) check their answer and keep other packets in
  `inbox`, which `expect` looks at first. Where the order of the answers matters, send and expect.
- `publish` and `ack` end when the broker has done all of it, QoS 0 too (a PINGREQ is the fence).
- A set, tuple or range in `expect(..., message_expiry_interval=range(57, 59))` means one of these.
  `expect("PUBLISH", topic_alias=None)` says that a property is absent.
- `drain()` gives all that came so far; `expect_messages(b"1", b"2", qos=1)` exactly these PUBLISH.
- `expect_close()` without codes is a silent close; 3.x after CONNACK ignores the codes, so that one
  table serves both versions. Before CONNACK the code is looked for in CONNACK.
- Every client checks each packet it gets: `wire.parse` (format, flags, property and reason code tables,
  UTF-8) and `Inspector` (CONNACK first and once, nothing after DISCONNECT, Maximum Packet Size, aliases,
  Receive Maximum, identifiers in use, Request Problem Information, authentication method).
- `server.expect_breach(raw, codes=0x82)` is a breach after CONNACK by a client with a will, seen by a
  bystander; `server.expect_refused(raw, codes=0x81)` the same for the first bytes of a connection.
- `server.retained("#")` is what a new subscriber gets; `server.watch("#")` sees what is routed.
- At the end of a test no client may be left in the broker and nothing may be logged at ERROR;
  `server.expect_errors()` says that an error is wanted.
- Hooks that refuse, wait, fail or authenticate are in `hooks.py`.
- What several files need is in modules without tests, one theme each: `sessions`, `deliveries`, `wills`,
  `authentication`, `texts`, `topics`, `breaches`, `refusals`, `connects_311`, `web_clients`, `script`,
  `certificates`, `codes`, `marks`. A check of theirs counts as looking at the wire if SHARED_CHECKS in
  `coverage_table.py` names it.
"""
