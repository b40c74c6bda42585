// MQTT.js for the tests: `node client.mjs URL SCENARIO VERSION [CA]` prints one line of JSON.
// What the tests expect of it stands in test_mqttjs.py; here is only what the client does.

import { readFileSync } from "node:fs";
import mqtt from "mqtt";

const [url, scenario, version, ca] = process.argv.slice(2);
const mqtt5 = version === "5";

const options = (clientId, more = {}) => ({
  clientId,
  protocolVersion: Number(version),
  protocolId: version === "3" ? "MQIsdp" : "MQTT",
  reconnectPeriod: 0,
  ca: ca && readFileSync(ca),
  ...more,
});

// A session that outlives its connection.
const lasting = (more = {}) => ({
  clean: false,
  ...(mqtt5 && { properties: { sessionExpiryInterval: 3600 } }),
  ...more,
});

const client = (clientId, more) => mqtt.connectAsync(url, options(clientId, more));

// The next `count` messages; attach it before what brings them.
const messages = (from, count) =>
  new Promise((resolve) => {
    const found = [];
    from.on("message", (topic, payload, packet) => {
      found.push({
        topic,
        size: payload.length,
        text: payload.subarray(0, 40).toString(),
        qos: packet.qos,
        retain: packet.retain,
        dup: packet.dup,
        properties: plain(packet.properties),
      });
      if (found.length === count) resolve(found);
    });
  });

// Buffers as text, for JSON.
const plain = (properties) =>
  properties &&
  Object.fromEntries(
    Object.entries(properties).map(([name, value]) => [name, Buffer.isBuffer(value) ? value.toString() : value]),
  );

const once = (from, event, wanted = () => true) =>
  new Promise((resolve) => {
    from.on(event, (...found) => wanted(...found) && resolve(found));
  });

const scenarios = {
  async messages() {
    const subscriber = await client("sub");
    const publisher = await client("pub");
    const granted = await subscriber.subscribeAsync({ "q/0/#": { qos: 0 }, "q/1/#": { qos: 1 }, "q/2/#": { qos: 2 } });
    const found = messages(subscriber, 9);
    for (const grant of [0, 1, 2])
      for (const qos of [0, 1, 2])
        await publisher.publishAsync(`q/${grant}/${qos}`, Buffer.alloc(100_000, "x"), { qos });
    const result = { granted: granted.map(({ qos }) => qos), found: await found };
    await subscriber.unsubscribeAsync(["q/0/#", "q/1/#", "q/2/#"]);
    await Promise.all([subscriber.endAsync(), publisher.endAsync()]);
    return result;
  },

  async retained() {
    const publisher = await client("pub");
    for (const text of ["old", "new"]) await publisher.publishAsync("state/a", text, { qos: 1, retain: true });
    await publisher.publishAsync("state/b", "x", { qos: 1, retain: true });
    await publisher.publishAsync("state/b", "", { qos: 1, retain: true });
    const found = messages(publisher, 2);
    await publisher.subscribeAsync("state/#", { qos: 2 });
    await publisher.publishAsync("state/c", "live", { qos: 1 });
    const result = await found;
    await publisher.endAsync();
    return result;
  },

  async session() {
    const first = await client("me", lasting());
    await first.subscribeAsync("a", { qos: 1 });
    await first.endAsync();
    const publisher = await client("pub");
    for (let number = 0; number < 20; number++) await publisher.publishAsync("a", String(number), { qos: 1 });
    await publisher.endAsync();
    const again = mqtt.connect(url, options("me", lasting()));
    const found = messages(again, 20);
    const [connack] = await once(again, "connect");
    const result = { present: connack.sessionPresent, found: await found };
    await again.endAsync();
    return result;
  },

  async will() {
    const watcher = await client("watcher");
    await watcher.subscribeAsync("will/#", { qos: 2 });
    const found = messages(watcher, 1);
    for (const [name, leave] of [["polite", (c) => c.endAsync()], ["lost", (c) => c.stream.destroy()]]) {
      const leaving = await client(name, { will: { topic: `will/${name}`, payload: "gone", qos: 2, retain: false } });
      leaving.on("error", () => {});
      await leave(leaving);
    }
    const result = await found;
    await watcher.endAsync();
    return result;
  },

  async properties() {
    const subscriber = await client("sub", { properties: { topicAliasMaximum: 2, receiveMaximum: 3 } });
    await subscriber.subscribeAsync("a/+", { qos: 2, properties: { subscriptionIdentifier: 268435455 } });
    const found = messages(subscriber, 3);
    const publisher = await client("pub", { autoAssignTopicAlias: false });
    const properties = {
      contentType: "json",
      correlationData: Buffer.from("42"),
      messageExpiryInterval: 1000,
      payloadFormatIndicator: true,
      responseTopic: "answers",
      userProperties: { k: ["v", "w"] },
    };
    await publisher.publishAsync("a/b", "{}", { qos: 1, properties: { ...properties, topicAlias: 1 } });
    await publisher.publishAsync("", "{}", { qos: 1, properties: { topicAlias: 1 } });
    await publisher.publishAsync("a/b", "{}", { qos: 0 });
    const result = await found;
    await Promise.all([subscriber.endAsync(), publisher.endAsync()]);
    return result;
  },

  async refusals() {
    const here = await client("me");
    const acks = [];
    here.on("packetreceive", ({ cmd, reasonCode }) => acks.push([cmd, reasonCode]));
    const errors = [];
    for (const [topic, qos] of [["$SYS/mine", 1], ["$SYS/mine", 2], ["nobody/listens", 1]])
      await here.publishAsync(topic, "x", { qos }).catch((error) => errors.push(error.code));
    await here.endAsync();
    return { acks, errors };
  },

  // The test loses the answers to what is published here, and cuts the wire.
  async interrupted() {
    const publisher = await client("pub", lasting({ reconnectPeriod: 20 }));
    console.error("connected");
    await once(process.stdin, "data");
    const sent = [];
    for (let number = 0; number < 15; number++) sent.push(publisher.publishAsync("a", String(number), { qos: 2 }));
    await Promise.all(sent);
    await publisher.endAsync();
    return "all published";
  },

  // The test loses our acknowledgements, and cuts the wire.
  async listening() {
    const subscriber = mqtt.connect(url, options("sub", lasting({ reconnectPeriod: 20 })));
    const first = messages(subscriber, 15);
    const all = messages(subscriber, 30);
    await once(subscriber, "connect");
    await subscriber.subscribeAsync("a", { qos: 2 });
    console.error("subscribed");
    await first;
    console.error("received");
    const result = await all;
    await subscriber.endAsync();
    return result;
  },

  async pings() {
    const here = mqtt.connect(url, options("me", { keepalive: 2 }));
    for (let count = 0; count < 2; count++) await once(here, "packetreceive", (packet) => packet.cmd === "pingresp");
    const alive = here.connected;
    await here.endAsync();
    return alive;
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
process.exit(0);
