"""Registers the invariants, whichever test needs them."""

import fleet_invariants  # noqa: F401
import network_invariants  # noqa: F401
import pod_invariants  # noqa: F401
