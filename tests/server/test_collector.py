"""What a server does not collect: what it has loaded stays for good."""

from __future__ import annotations

import gc

from floatscope_server.serve_command import _keep_what_is_loaded


def test_a_full_collection_leaves_out_what_was_there_at_the_start() -> None:
    class Loaded:
        pass

    class Later:
        pass

    loaded, later = Loaded(), None
    try:
        _keep_what_is_loaded()
        later = Later()
        looked_at = gc.get_objects()
        assert any(one is later for one in looked_at)
        assert not any(one is loaded for one in looked_at)
    finally:
        gc.unfreeze()
    assert any(one is loaded for one in gc.get_objects())
