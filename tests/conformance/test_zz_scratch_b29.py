import pytest
from tests.conformance.test_b_operation import authority, Authority, tls_client, leave_tls, wire  # noqa
from tests.conformance.test_b_operation import test_b29__an_end_without_disconnect_is_abnormal as t
@pytest.mark.tcp_only("x")
@pytest.mark.parametrize("n", range(150))
@pytest.mark.parametrize("way", ["fin", "alert", "rst"])
def test_b29__scratch(serve, authority, way, n):
    t(serve, authority, way)
