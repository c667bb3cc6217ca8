"""What all tests share: no property test is judged by the clock of a loaded machine."""

import importlib.util

if importlib.util.find_spec("hypothesis"):  # a GPU machine may have none
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
