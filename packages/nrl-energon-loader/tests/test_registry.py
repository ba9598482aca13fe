"""Names: keys, files, what changes an identity."""

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from nrl_energon_loader.cookers import make_cookers
from nrl_energon_loader.registry import COOKERS, PROCESSOR_ADAPTERS, TASK_ENCODERS, Registry, UnknownNameError


@pytest.mark.parametrize("registry", [COOKERS, TASK_ENCODERS, PROCESSOR_ADAPTERS], ids=["cooker", "encoder", "adapter"])
def test_every_key_is_found(registry: Registry) -> None:
    for key in registry.known:
        found = registry.resolve(key)
        assert callable(found.obj)
        assert found.identity == {"key": key, "version": 1}


def test_a_module_is_imported_when_its_key_is_asked_for() -> None:
    code = (
        "import sys, nrl_energon_loader\n"
        "from nrl_energon_loader.registry import PROCESSOR_ADAPTERS\n"
        "adapter = 'nrl_energon_loader.encoders.hf_processor'\n"
        "print([name in sys.modules for name in (adapter, 'jinja2', 'transformers')])\n"
        "PROCESSOR_ADAPTERS.resolve('hf_multimodal')\n"
        "print(adapter in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == ["[False, False, False]", "True"]


def test_an_unknown_key_is_told_with_the_nearest_and_all() -> None:
    with pytest.raises(UnknownNameError) as caught:
        COOKERS.resolve("generic_conversations")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.kind, error.name, error.known) == ("cooker", "generic_conversations", COOKERS.known)
    assert str(error).startswith(
        "cooker 'generic_conversations' is not registered (did you mean 'generic_conversation'?); allowed: "
    )
    with pytest.raises(ValueError, match=r"^cooker 'x' is not registered; allowed: .*generic_conversation"):
        COOKERS.resolve("x")


def test_a_file_is_known_by_its_bytes_and_not_by_its_path(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for path in (one, other):
        path.write_text("class Thing:\n    value = 1\n")
    found, again, copy = (COOKERS.resolve(f"{path}:Thing") for path in (one, one, other))
    assert found.obj is again.obj  # run once
    assert found.identity == copy.identity
    assert found.identity == {"object": "Thing", "sha256": hashlib.sha256(one.read_bytes()).hexdigest()}
    assert str(tmp_path) not in json.dumps(found.identity)

    one.write_text("class Thing:\n    value = 2\n")
    changed = COOKERS.resolve(f"{one}:Thing")
    assert (found.obj.value, changed.obj.value) == (1, 2)
    assert changed.identity != found.identity


def test_objects_of_a_file_can_be_pickled_and_be_dataclasses(tmp_path: Path) -> None:
    file = tmp_path / "things.py"
    file.write_text("from dataclasses import dataclass\n@dataclass\nclass Thing:\n    value: int\n")
    thing = COOKERS.resolve(f"{file}:Thing").obj(3)
    assert pickle.loads(pickle.dumps(thing)) == thing


def test_bad_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("things.py").write_text("Thing = 1\n")
    Path("broken.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="relative path; allowed: an absolute one"):
        COOKERS.resolve("things.py:Thing")
    with pytest.raises(ValueError, match=r"can't be read .*No such file"):
        COOKERS.resolve(f"{tmp_path}/none.py:Thing")
    with pytest.raises(ValueError, match=r"'Other' is not in .*things\.py; it has: Thing"):
        COOKERS.resolve(f"{tmp_path}/things.py:Other")
    for _ in range(2):  # a module that failed is not kept
        with pytest.raises(ZeroDivisionError):
            COOKERS.resolve(f"{tmp_path}/broken.py:Thing")


def test_a_key_can_be_added_with_a_version() -> None:
    registry = Registry("thing", {"a": "collections:Counter"})
    registry.register("b", "collections:OrderedDict", version=3)
    assert registry.resolve("b").identity == {"key": "b", "version": 3}
    assert registry.known == ("a", "b")
    for key, target in (("b", "x:Y"), ("c:d", "x:Y"), ("c", "no_target")):
        with pytest.raises(ValueError, match=r"choose another key|allowed: a key without"):
            registry.register(key, target, version=1)
    assert registry.known == ("a", "b")


def test_cookers_are_asked_in_order_and_the_one_for_all_comes_last(tmp_path: Path) -> None:
    file = tmp_path / "cook.py"
    file.write_text("def cook(sample):\n    return sample\n")
    entries = [(f"{file}:cook", {"kind": "old"}), ("generic_conversation", None)]
    (old, rest), identity = make_cookers(entries)
    assert old.is_match({"kind": "old", "more": 1})
    assert not old.is_match({"kind": "new"})
    assert rest.is_match({})
    assert identity == [
        {"object": "cook", "sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "has_subflavors": {"kind": "old"}},
        {"key": "generic_conversation", "version": 1, "has_subflavors": None},
    ]
    with pytest.raises(ValueError, match=r"cookers\[0\] \('generic_conversation'\) has no has_subflavors"):
        make_cookers(entries[::-1])
    with pytest.raises(ValueError, match="cookers has 0 entries"):
        make_cookers([])
    with pytest.raises(ValueError, match=r"cookers\[0\]"):  # an empty filter matches all, too
        make_cookers([("generic_conversation", {}), ("generic_conversation", None)])
