"""Layers of container images, put together from files of this machine."""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO


@dataclass(frozen=True)
class File:
    """Content, or the file of this machine that has it."""

    content: Path | bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class Folder:
    mode: int = 0o755


@dataclass
class Layer:
    """What goes in, by absolute path in the image. The same entries give the same bytes."""

    entries: dict[Path, File | Link | Folder] = field(default_factory=dict)

    def add(self, path: Path | str, entry: File | Link | Folder) -> None:
        self.entries[Path(path)] = entry

    def add_file(self, source: Path, path: Path | None = None) -> None:
        """A file of this machine with its mode, under its own path unless told another. Links are followed."""
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.entries[path or source] = File(source, mode)

    def add_libraries(self, programs: Iterable[Path], moved: Mapping[Path, Path] = MappingProxyType({})) -> None:
        """The shared libraries that these programs and libraries need, under the paths where the linker finds them.

        `moved`: folders of this machine that the image has elsewhere.
        """
        for library in libraries(programs):
            # /lib may be a link to /usr/lib: the image has one copy, and the link (see `top_level_links`).
            place = library.parent.resolve() / library.name
            for folder, other in moved.items():
                if place.is_relative_to(folder):
                    place = other / place.relative_to(folder)
            self.add_file(library, place)

    def write(self, to: BinaryIO) -> None:
        """Write the layer as a tar. A Python source gets its bytecode along: no container compiles it again."""
        with tarfile.open(fileobj=to, mode="w") as tar:
            for path, entry in sorted(self.entries.items()):
                info = tarfile.TarInfo(str(path).lstrip("/"))
                match entry:
                    case Folder(mode):
                        info.type, info.mode = tarfile.DIRTYPE, mode
                        tar.addfile(info)
                    case Link(target):
                        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
                        tar.addfile(info)
                    case File(content, mode):
                        data = content if isinstance(content, bytes) else content.read_bytes()
                        _write_file(tar, path, data, mode)
                        if path.suffix == ".py" and isinstance(content, Path) and (code := bytecode(content, data)):
                            _write_file(tar, _cache_path(path), code, 0o644)


def _write_file(tar: tarfile.TarFile, path: Path, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(str(path).lstrip("/"))
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _cache_path(source: Path) -> Path:
    return source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"


def bytecode(path: Path, source: bytes) -> bytes | None:
    """The bytecode of a source, which Python takes without a look at the source's time. None for what is no Python.

    Takes what Python has compiled before, as compiling all of a large package lasts minutes. Format: PEP 552.
    """
    cached = Path(importlib.util.cache_from_source(path, optimization=""))
    stat = path.stat()
    timed = b"".join(number.to_bytes(4, "little") for number in (0, int(stat.st_mtime), stat.st_size))
    found = cached.read_bytes() if cached.exists() else b""
    if found.startswith(importlib.util.MAGIC_NUMBER + timed):
        code = found[16:]
    else:
        try:
            code = marshal.dumps(compile(source, path, "exec", dont_inherit=True, optimize=0))
        except (SyntaxError, ValueError):
            return None
    unchecked = (1).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + code


def libraries(programs: Iterable[Path]) -> list[Path]:
    """What the dynamic linker loads for these programs or libraries, itself included, by absolute path."""
    # Says for each on standard output what it needs; fails for one that is static, which needs nothing.
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    words = (word for line in said.splitlines() if line.startswith("\t") for word in line.split())
    return sorted({Path(word) for word in words if word.startswith("/")})


def top_level_links() -> dict[Path, Link]:
    """/lib and its kin where they are links on this machine, and /bin always: all programs go to /usr/bin."""
    found = {path: Link(str(path.readlink())) for path in sorted(Path("/").glob("lib*")) if path.is_symlink()}
    return found | {Path("/bin"): Link("usr/bin")}
