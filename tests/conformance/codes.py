"""Reason Codes that many tests look for, and the whole answer to a version that is not served."""

MALFORMED, PROTOCOL_ERROR, UNSUPPORTED_VERSION = 0x81, 0x82, 0x84
FILTER_INVALID, NAME_INVALID = 0x8F, 0x90
TOO_LARGE, QUOTA_EXCEEDED, SHARED_NOT_SUPPORTED = 0x95, 0x97, 0x9E

REFUSED_3X, REFUSED_5 = bytes.fromhex("20 02 00 01"), bytes.fromhex("20 03 00 84 00")
