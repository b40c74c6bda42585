"""Numbers with units, as a person reads them: at most three digits that count."""

from __future__ import annotations

import math
from datetime import UTC, datetime

NOTHING = "–"
# Control characters, and what turns the direction of the text after it.
TURNS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
ODD = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), *TURNS, 0xFEFF)}


def count(value: float | None) -> str:
    """1,234 up to 99,999; then 123 k, 1.23 M."""
    if value is None:
        return NOTHING
    if abs(value) < 100_000:
        return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else three(value)
    return scaled(value, 1000, ("", " k", " M", " G", " T", " P"))


def size(value: float | None) -> str:
    """Bytes: 850 B, 1.23 kB."""
    return NOTHING if value is None else scaled(value, 1000, (" B", " kB", " MB", " GB", " TB", " PB"))


def rate(value: float | None) -> str:
    return NOTHING if value is None else f"{count(value)}/s"


def scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    at = 0
    while abs(value) >= step * 0.9995 and at < len(units) - 1:
        value, at = value / step, at + 1
    return f"{three(value)}{units[at]}"


def three(value: float) -> str:
    """Three digits that count, without the zeros after the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def microseconds(value: float | None) -> str:
    """850 µs, 1.23 ms, 4.5 s, 3 min."""
    if value is None:
        return NOTHING
    if abs(value) < 1_000_000:
        return scaled(value, 1000, (" µs", " ms"))
    return seconds(value / 1_000_000)


def milliseconds(value: float | None) -> str:
    return NOTHING if value is None else "0 ms" if value == 0 else microseconds(value * 1000)


def seconds(value: float | None) -> str:
    """4.5 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if value is None:
        return NOTHING
    if value < 0:
        return f"−{seconds(-value)}"
    if value < 60:
        return "0 s" if value == 0 else microseconds(value * 1e6) if value < 1 else f"{three(value)} s"
    whole = round(value)
    for unit, name, below, other in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name} {rest} {other}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    return f"{three(share * 100)} %" if share == 0 or share * 100 >= 0.01 else "under 0.01 %"


def moment(text: str | None, pattern: str = "%Y-%m-%d %H:%M") -> str:
    """Of an ISO text in UTC."""
    return NOTHING if text is None else datetime.fromisoformat(text).strftime(pattern)


def clock(milliseconds_: int, pattern: str = "%H:%M") -> str:
    """Of milliseconds since 1970, UTC."""
    return datetime.fromtimestamp(milliseconds_ / 1000, UTC).strftime(pattern)


def name(text: str | None, longest: int = 60) -> str:
    """A topic or client for one line: no characters that steer, the middle left out where it is long."""
    if text is None:
        return NOTHING
    shown = text.translate(ODD) or '""'
    if len(shown) <= longest:
        return shown
    half = (longest - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round values from 0 to at least *top*: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if top <= 0:
        return [0, 1]
    raw = top / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [n * step for n in range(math.ceil(top / step - 1e-9) + 1)]


def powers(low: float, high: float) -> list[float]:
    """Powers of ten from at most *low* to at least *high*, both above 0."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]
