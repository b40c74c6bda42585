"""The contract of hooks: a store that cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker import ReasonCode
from broker.errors import StoreError
from tests.durable import broken_disk, recovered, until
from tests.hook.made import OF_THE_STORE, boom, hangs, hook
from tests.peer import Peer, memory_broker, run_async


@run_async
async def test_40__told_once_when_it_fails_and_once_when_it_works_again(tmp_path: Path) -> None:
    seen: list[Any] = []
    told = hook(
        on_store_failed=lambda failure: seen.append((type(failure), failure.full, str(failure))),
        on_store_recovered=lambda: seen.append("recovered"),
    )
    path = tmp_path / "broker.db"
    async with memory_broker(hooks=[told], store=path) as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await peer.subscribe("t", qos=1)
        await other.connect("o")
        with broken_disk(broker):
            assert await other.publish("t", b"1", qos=1) == ReasonCode.QUOTA_EXCEEDED
            assert seen == [(StoreError, True, f"{path}: no room")]
            await until(lambda: broker._core.journal.failures > 3)
            assert await other.publish("t", b"2", qos=2, packet_id=2) == ReasonCode.QUOTA_EXCEEDED
        await recovered(broker)
        assert seen[1:] == ["recovered"]
        assert await other.publish("t", b"4", qos=1, packet_id=4) == 0
    assert len(seen) == 2


@pytest.mark.parametrize("failure", [boom, hangs])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@run_async
async def test_40__one_that_fails_is_logged(
    failure: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = dict.fromkeys(OF_THE_STORE, failure)
    async with memory_broker(hooks=[hook(**events)], store=tmp_path / "broker.db") as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await peer.subscribe("t", qos=1)
        await other.connect("o")
        with broken_disk(broker, full=False):
            assert await other.publish("t", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        await recovered(broker)
        assert await other.publish("t", qos=1) == 0
    assert all(f"failed in {event}" in caplog.text for event in OF_THE_STORE)
