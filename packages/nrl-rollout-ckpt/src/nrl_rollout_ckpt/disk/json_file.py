"""A JSON file of a snapshot, whose every field has to be known and of its type."""

from pathlib import Path
from typing import Any, NoReturn, cast

import orjson

from nrl_rollout_ckpt.disk.manifest import refuse_newer_format

__all__ = ["FORMAT", "JsonFile", "SidecarError"]

FORMAT = 1


class SidecarError(ValueError):
    """Raised when a file of a snapshot does not hold what it should.

    Attributes:
        path: The file.
        problem: What is wrong with it.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} can't be restored: {self.problem}"


class JsonFile:
    """The fields of a JSON file, each taken once, none left over.

    Raises:
        SidecarError: It is no JSON object, from here on whenever a field is not as it should be.
        NewerFormatError: A later version wrote it.
        OSError: It can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, path.read_bytes()
        try:
            content = orjson.loads(self.data)
        except ValueError as error:
            raise SidecarError(path, f"it is no JSON: {error}") from error
        if not isinstance(content, dict):
            self.fail(f"it holds {type(content).__name__}; allowed: an object")
        self._fields = cast("dict[str, Any]", content)
        refuse_newer_format(str(path), self._fields.pop("schema_version", None), (FORMAT,))

    def take(self, name: str, kind: type[Any]) -> Any:
        """Give the field of this name, of exactly this type."""
        if name not in self._fields:
            self.fail(f"{name} is missing")
        value = self._fields.pop(name)
        if type(value) is not kind:
            self.fail(f"{name} is {value!r}; allowed: {kind.__name__}")
        return value

    def take_count(self, name: str) -> int:
        """Give the field of this name, an int from 0."""
        return self.require_count(name, self.take(name, int))

    def require_count(self, name: str, value: Any) -> int:
        """Check that a value is an int from 0."""
        if type(value) is not int or value < 0:
            self.fail(f"{name} is {value!r}; allowed: an int from 0")
        return value

    def end(self) -> None:
        """Refuse fields that nobody took."""
        if self._fields:
            self.fail(f"{min(self._fields)} is no field of it")

    def fail(self, problem: str) -> NoReturn:
        """Raise SidecarError for this file."""
        raise SidecarError(self.path, problem)
