"""Cookers, task encoders and processor adapters by name: a key, or an object of a Python file.

What a name means is part of a loader's identity: a key with its version, a file with its SHA-256.
"""

import difflib
import hashlib
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["COOKERS", "PROCESSOR_ADAPTERS", "TASK_ENCODERS", "Registry", "Resolved", "UnknownNameError"]


@dataclass(frozen=True)
class Resolved:
    """What a name stands for.

    Attributes:
        obj: The object.
        identity: Plain JSON that changes when the name comes to mean something else; no path is in it.
    """

    obj: Any
    identity: dict[str, Any]


class UnknownNameError(ValueError):
    """Raised when a registry has no such key.

    Attributes:
        kind: What the registry holds.
        name: What was asked for.
        known: All keys.
    """

    def __init__(self, kind: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(kind, name, known)
        self.kind, self.name, self.known = kind, name, known

    def __str__(self) -> str:
        near = difflib.get_close_matches(self.name, self.known, n=3)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        return (
            f"{self.kind} {self.name!r} is not registered{hint}; allowed: {', '.join(self.known)}, "
            f"or an object of a Python file, as in '/absolute/path/file.py:Name'"
        )


class Registry:
    """Objects of one kind by name; a module is imported when one of its names is asked for.

    Args:
        kind: What the objects are, for messages.
        targets: For each key where its object is, as ``module:Name``. Their version is 1.

    >>> kinds = Registry("counter", {"plain": "collections:Counter"})
    >>> kinds.resolve("plain")
    Resolved(obj=<class 'collections.Counter'>, identity={'key': 'plain', 'version': 1})
    """

    def __init__(self, kind: str, targets: Mapping[str, str]) -> None:
        self._kind = kind
        self._entries = {key: (target, 1) for key, target in targets.items()}

    @property
    def known(self) -> tuple[str, ...]:
        """All keys, sorted."""
        return tuple(sorted(self._entries))

    def register(self, key: str, target: str, *, version: int) -> None:
        """Add a key.

        Args:
            key: The name; without ``:``, which stands in names of files only.
            target: Where the object is, as ``module:Name``.
            version: Give a higher one whenever the object's results change: states saved before are then refused.

        Raises:
            ValueError: If the key is taken or has a ``:``, or ``target`` has none.
        """
        if key in self._entries:
            raise ValueError(f"{self._kind} {key!r} is registered already, as {self._entries[key]}; choose another key")
        if ":" in key or target.count(":") != 1:
            raise ValueError(
                f"{self._kind} {key!r} is to be {target!r}; allowed: a key without ':', and a target 'module:Name'"
            )
        self._entries[key] = (target, version)

    def resolve(self, name: str) -> Resolved:
        """Find what a name stands for.

        Args:
            name: A key, or ``/absolute/path/file.py:Name``.

        Raises:
            UnknownNameError: If the key is not registered.
            ValueError: If the file can't be read, its path is not absolute, or it has no such object.
        """
        if ":" in name:
            return self._from_file(*name.rsplit(":", 1))
        if name not in self._entries:
            raise UnknownNameError(self._kind, name, self.known)
        target, version = self._entries[name]
        module, attribute = target.split(":")
        return Resolved(getattr(importlib.import_module(module), attribute), {"key": name, "version": version})

    def _from_file(self, path: str, attribute: str) -> Resolved:
        if not Path(path).is_absolute():
            raise ValueError(f"{self._kind} {path}:{attribute} is in a relative path; allowed: an absolute one")
        try:
            source = Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"{self._kind} {path}:{attribute} can't be read ({error}); allowed: a file") from error
        digest = hashlib.sha256(source).hexdigest()
        module = _run_once(path, source, digest)
        if not hasattr(module, attribute):
            names = ", ".join(sorted(name for name in vars(module) if not name.startswith("_")))
            raise ValueError(f"{self._kind} {attribute!r} is not in {path}; it has: {names}")
        return Resolved(getattr(module, attribute), {"object": attribute, "sha256": digest})


def _run_once(path: str, source: bytes, digest: str) -> ModuleType:
    """Run the bytes that were digested as a module; once a process, so that its classes stay the same ones."""
    name = f"nrl_energon_loader_file_{hashlib.sha256(path.encode()).hexdigest()[:16]}_{digest[:16]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = path
        code = compile(source, path, "exec")
        sys.modules[name] = module  # before it runs: dataclasses look for their module there
        try:
            exec(code, vars(module))  # noqa: S102 - the user's own file, named in the user's config
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


COOKERS: Final = Registry(
    "cooker", {"generic_conversation": "nrl_energon_loader.cookers.conversation:cook_conversation"}
)
TASK_ENCODERS: Final = Registry(
    "task encoder",
    {
        "generic_sft": "nrl_energon_loader.encoders.generic_sft:GenericSFTTaskEncoder",
        "utf8_bytes": "nrl_energon_loader.encoders.utf8_bytes:Utf8BytesTaskEncoder",
    },
)
PROCESSOR_ADAPTERS: Final = Registry(
    "processor adapter", {"hf_multimodal": "nrl_energon_loader.encoders.hf_processor:HFProcessorAdapter"}
)
