"""Modules that a pickle needs, read from the pickle."""

from __future__ import annotations

import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.launch import closure
from spark_hvd.launch.closure import missing, modules_of, pickle_call


def own_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (folder / "only_here").mkdir()
    (folder / "only_here/__init__.py").write_text("")
    (folder / "only_here/layers.py").write_text("def forward(x):\n    return x\n\nclass Layer:\n    pass\n")
    monkeypatch.syspath_prepend(str(folder))
    import only_here.layers

    return only_here.layers


def test_modules_of_functions_classes_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = own_module(tmp_path, monkeypatch)
    try:

        def uses_all(x: Any) -> Any:
            return np.abs(layers.forward(x))

        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert "only_here.layers" in modules_of(pickle.dumps(layers.forward, protocol))
            assert "only_here.layers" in modules_of(pickle.dumps([layers.Layer(), layers.Layer()], protocol))
        found = modules_of(cloudpickle.dumps(uses_all))
        assert {"only_here.layers", "numpy"} <= set(found)
        assert missing(found) == []
        data = pickle_call(layers.forward, (np.ones(3),), {"by": layers.Layer})
    finally:
        del sys.modules["only_here.layers"], sys.modules["only_here"]
        sys.path_importer_cache.clear()
    monkeypatch.undo()
    assert missing(modules_of(data)) == ["only_here.layers"]
    assert missing(modules_of(data), [str(tmp_path)]) == []
    assert "only_here" not in sys.modules


def test_what_is_found_without_import() -> None:
    names = ["json.decoder", "os.path", "sys", "numpy.linalg", "zipimport", "xml.dom.minidom"]
    assert missing([*names, "no_such_module", "no_such.deep"]) == ["no_such_module", "no_such.deep"]


def test_the_test_module_itself_travels_by_value() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        assert __name__ not in modules_of(cloudpickle.dumps(own_module))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_large_closure_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure, "LARGE_BYTES", 1000)
    pickle_call(print, (b"x" * 500,), None)
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        pickle_call(print, (b"x" * 2000,), None)
    assert "Write large data to the Store" in caplog.text


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a function, found str"):
        pickle_call("print", (), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be pickled"):
        pickle_call(print, (sys._getframe(),), None)
