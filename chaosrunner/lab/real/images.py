"""The container images of a real lab, made from files of this machine: no registry, no download.

They are tars that `ctr images import` takes; Pods name them with `imagePullPolicy: Never`. Each is kept in the user's
cache by what it is made of. Its tag tells that too, so that no Pod runs other code than the one that named it meant.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import chaosrunner
from chaosrunner.errors import UserError
from chaosrunner.lab.real import binaries as programs
from chaosrunner.lab.real import layers
from chaosrunner.lab.real.binaries import Binaries
from chaosrunner.lab.real.caching import clear_scratch, scratch
from chaosrunner.lab.real.layers import File, Folder, Layer, Link

_SITE = Path("/opt/chaosrunner")
"""Where an image has the Python packages that are not Python's own."""
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_ENVIRONMENT = [
    "PATH=/usr/local/bin:/usr/bin:/bin",
    "HOME=/tmp",
    "LANG=C.UTF-8",
    f"SSL_CERT_FILE={_CERTIFICATES}",
    f"PYTHONPATH={_SITE}",
    "PYTHONUNBUFFERED=1",
    "PYTHONDONTWRITEBYTECODE=1",
]
_TOOLS = ("sh", "sleep", "cat", "kill")
_COMMAND = "/usr/local/bin/chaosrunner"

_PACKAGE = Path(chaosrunner.__file__).parent
_WORKLOAD = ("__init__.py", "errors.py", "lab/__init__.py", "lab/workload/**/*.py")
_WORKLOAD_NEEDS = ("pyyaml", "certifi")
_OPTIONAL = ("h2",)
"""Packages of extras that a run makes use of."""

_NOT_OF_PYTHON = (
    *("test", "tests", "_test*", "_ctypes_test*", "xx*", "_xx*", "idlelib", "lib2to3", "turtledemo", "tkinter"),
    *("_tkinter*", "pydoc_data", "ensurepip", "config-*", "site-packages", "dist-packages", "__pycache__"),
)
"""Files and folders of the standard library that no program here imports: tests, Tk and what builds Python."""

_NOT_OF_PACKAGES = re.compile(
    # Bytecode, which is made anew; what only developers need; tests, but for what is imported from there by others.
    r"(^|/)__pycache__/|\.(pyi|h|hpp|pxd|pyx|pxi|a|c|cc|pth)$|(^|/)tests/(?!_)"
    # Parts that pyarrow does without, where nothing else needs them; they are of 50 MB.
    r"|^pyarrow/(include/|(_|lib(arrow|arrow_python)_)(flight|substrait|s3))"
    # chaosrunner itself comes from where it is imported from.
    r"|^chaosrunner/"
)

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What images call the kinds of machines."""

_KEPT_SECONDS = 3600.0
"""An image not asked for in so long goes when another is made. A younger one another lab may be about to read."""


@dataclass(frozen=True)
class Image:
    """What a Pod calls it, and the file to import."""

    reference: str
    tar: Path


def pause(binaries: Binaries) -> Image:
    """The program of a Pod's sandbox."""
    return _of_program("pause", binaries.pause)


def coredns(binaries: Binaries) -> Image:
    """CoreDNS; its arguments are the Pod's to give."""
    return _of_program("coredns", binaries.coredns)


def agent(tell: programs.Tell, architecture: str = "") -> Image:
    """The agent that makes faults inside Pods, under the name that drills give it where they name no other.

    `architecture`: one of `binaries.ARCHITECTURES`, else this machine's. Raises `UserError` where it has to be built
    and cannot be.
    """
    program = programs.agent(tell, architecture)
    reference = f"chaosrunner/agent:{chaosrunner.__version__}"
    return _of_program("agent", program, reference=reference, architecture=architecture)


def workload() -> Image:
    """This machine's Python with `chaosrunner.lab.workload`, and sh, sleep, cat, kill. It has no entry point.

    Raises `UserError` for a tool that the machine lacks.
    """
    code = _code(_WORKLOAD)
    parts = [*_base_parts(), _digest(code)]
    return _cached("workload", {}, parts, lambda: [_base(), _layer_of_code(code)])


def runner() -> Image:
    """Python, chaosrunner and all that it needs, with the entry point `chaosrunner`; HTTP/2 where it is installed here.
    Shares its base with `workload`.

    Raises `UserError` where chaosrunner or something that it needs was not installed as a package.
    """
    code = _code(("**/*",))
    for kind in ("playbooks", "drills"):
        # A wheel has these in the package, a checkout beside it.
        code |= {Path("shipped", kind, file.name): file for file in (_PACKAGE.parent / kind).glob("*.yaml")}
    needed = _closure(("chaosrunner", *filter(importlib.util.find_spec, _OPTIONAL)))

    def contents() -> list[Layer]:
        base, packages, own = _base(), Layer(), _layer_of_code(code)
        _add_distributions(packages, needed)
        for path in base.entries.keys() & packages.entries.keys():
            del packages.entries[path]
        command = "#!/usr/local/bin/python3\nimport sys\n\nfrom chaosrunner.cli import main\n\nsys.exit(main())\n"
        own.add(_COMMAND, File(command.encode(), 0o755))
        return [base, packages, own]

    parts = [*_base_parts(), *_versions(needed), _digest(code)]
    return _cached("runner", {"Entrypoint": [_COMMAND]}, parts, contents)


def _of_program(name: str, program: Path, *, reference: str = "", architecture: str = "") -> Image:
    """An image of one static program."""

    def contents() -> list[Layer]:
        layer = Layer({Path("/tmp"): Folder(0o1777)})
        layer.add_file(program, Path("/") / name)
        return [layer]

    return _cached(
        name,
        {"Entrypoint": [f"/{name}"]},
        [_stamp(program)],
        contents,
        reference=reference,
        architecture=architecture,
    )


def _cached(
    name: str,
    config: dict[str, Any],
    parts: list[str],
    contents: Callable[[], list[Layer]],
    *,
    reference: str = "",
    architecture: str = "",
) -> Image:
    """The image of this name whose `contents` are described by `parts`: from the cache, or made.

    It is called after its content where no `reference` is given, and is for this machine where no `architecture` is.
    """
    architecture = architecture or _ARCHITECTURES.get(platform.machine(), platform.machine())
    makers = [hashlib.sha256(Path(module).read_bytes()).hexdigest() for module in (__file__, layers.__file__)]
    made_of = [makers, architecture, reference, config, parts]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    folder = programs.cache() / "images"
    image = Image(reference or f"localhost/chaosrunner/{name}:{key}", folder / f"{name}-{key}.tar")
    if image.tar.exists():
        os.utime(image.tar)
        return image
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-*.tar"):
        if old.stat().st_mtime < time.time() - _KEPT_SECONDS:
            old.unlink()
    clear_scratch(folder, age=_KEPT_SECONDS)  # nobody is locked out here: what is young may be in the making
    with scratch(folder) as place:
        made = _write(image.reference, architecture, config, contents(), place)
        made.rename(image.tar)
    return image


def _write(reference: str, architecture: str, config: dict[str, Any], contents: list[Layer], scratch: Path) -> Path:
    """Write an image in the format of `docker save`: a tar of layers, the configuration, and a manifest of both.

    Format: https://github.com/moby/moby/blob/master/image/spec/v1.2.md.
    """
    digests = []
    for layer in contents:
        with (scratch / "layer").open("w+b") as file:
            layer.write(file)
            file.seek(0)
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        (scratch / "layer").rename(scratch / digests[-1])
    configuration = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": _ENVIRONMENT, "WorkingDir": "/"} | config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    name = hashlib.sha256(configuration).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}.tar" for digest in digests]}]
    with tarfile.open(scratch / "image.tar", "w") as tar:
        for entry, data in (("manifest.json", json.dumps(manifest).encode()), (name, configuration)):
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for digest in digests:
            info = tarfile.TarInfo(f"{digest}.tar")
            info.size = (scratch / digest).stat().st_size
            with (scratch / digest).open("rb") as file:
                tar.addfile(info, file)
    return scratch / "image.tar"


def _base() -> Layer:
    """A small Linux with this Python and what the workload needs besides its own code."""
    layer = Layer({**layers.top_level_links()})
    accounts = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    layer.add("/etc/passwd", File(accounts.encode()))
    layer.add("/etc/group", File(b"root:x:0:\nnogroup:x:65534:\n"))
    layer.add("/etc/nsswitch.conf", File(b"passwd: files\ngroup: files\nhosts: files dns\n"))
    for folder in ("/dev", "/proc", "/root", "/run", "/sys"):
        layer.add(folder, Folder())
    for folder in ("/tmp", "/var/tmp"):
        layer.add(folder, Folder(0o1777))
    tools = {name: _tool(name) for name in _TOOLS}
    for name, tool in tools.items():
        layer.add_file(tool, Path("/usr/bin") / name)
    python = _python()
    layer.add_file(python)
    for name in ("python", "python3"):
        layer.add(Path("/usr/local/bin") / name, Link(str(python)))
    extensions = _add_standard_library(layer)
    layer.add_libraries([python, *extensions, *tools.values()])
    # The linker's own knowledge of where libraries are: not all are in folders that it searches without.
    if (known := Path("/etc/ld.so.cache")).exists():
        layer.add_file(known)
    _add_distributions(layer, _closure(_WORKLOAD_NEEDS))
    layer.add(_CERTIFICATES, layer.entries[_SITE / "certifi/cacert.pem"])
    return layer


def _base_parts() -> list[str]:
    """What the base is made of; changes when any of it does."""
    files = [_python(), *(_tool(name) for name in _TOOLS)]
    return [sys.version, *map(_stamp, files), *_versions(_closure(_WORKLOAD_NEEDS))]


def _stamp(file: Path) -> str:
    """Stands for a large file's content: reading all of it takes longer than to import the image."""
    stat = file.stat()
    return f"{file} {stat.st_size} {stat.st_mtime_ns}"


def _python() -> Path:
    """The interpreter itself, which a virtual environment only links to."""
    own = Path(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")
    return (own if own.exists() else Path(sys.executable)).resolve()


def _tool(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise UserError(f"the lab's images need the program `{name}`, and it is not in PATH")
    return Path(found)


def _add_standard_library(layer: Layer) -> list[Path]:
    """Add it under its own path; return its extension modules."""
    library = Path(sysconfig.get_path("stdlib"))
    # Usually a folder of the library, but some systems keep what depends on the processor elsewhere.
    extensions = Path(sys.base_exec_prefix, sys.platlibdir, library.name, "lib-dynload")
    files = {file for root in (library, extensions) for file in _files(root, _is_of_use)}
    for file in files:
        layer.add_file(file)
    return [file for file in files if file.suffix == ".so"]


def _is_of_use(name: str) -> bool:
    return not any(fnmatch(name, pattern) for pattern in _NOT_OF_PYTHON)


def _files(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """All files below a folder but for those whose own name, or a folder's on the way, is not wanted."""
    for root, folders, files in os.walk(folder):
        folders[:] = filter(wanted, folders)
        yield from (file for name in files if wanted(name) and (file := Path(root, name)).is_file())


def _code(patterns: Iterable[str]) -> dict[Path, Path]:
    """Files of chaosrunner: by path in the package where they are."""
    found = (file for pattern in patterns for file in _PACKAGE.glob(pattern))
    return {file.relative_to(_PACKAGE): file for file in found if file.is_file() and file.parent.name != "__pycache__"}


def _layer_of_code(code: dict[Path, Path]) -> Layer:
    layer = Layer()
    for path, source in code.items():
        layer.add_file(source, _SITE / "chaosrunner" / path)
    return layer


def _digest(files: dict[Path, Path]) -> str:
    digest = hashlib.sha256()
    for path, source in sorted(files.items()):
        content = source.read_bytes()
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _closure(names: Iterable[str]) -> list[Distribution]:
    """Distributions of these names and all that they require here, by name.

    What is required under another Python or on another system only is not installed, and so not found.
    """
    found: dict[str, Distribution] = {}
    wanted = list(names)
    for name in wanted:
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if normal in found:
            continue
        try:
            found[normal] = importlib.metadata.distribution(name)
        except PackageNotFoundError:
            if name in names:
                raise UserError(f"the lab's images need the package {name}: run `pip install {name}`") from None
            continue
        for requirement in found[normal].requires or ():
            specifier, _, marker = requirement.partition(";")
            if "extra" not in marker and (match := re.match(r"[\w.-]+", specifier)):
                wanted.append(match[0])
    return [found[name] for name in sorted(found)]


def _versions(distributions: Iterable[Distribution]) -> list[str]:
    return [f"{each.name} {each.version}" for each in distributions]


def _add_distributions(layer: Layer, distributions: Iterable[Distribution]) -> None:
    """Add what was installed of them, and the system's libraries that their extension modules need."""
    sites, extensions = set(), []
    for each in distributions:
        if each.files is None:
            raise UserError(f"{each.name} was installed without a list of its files: run `pip install {each.name}`")
        sites.add(Path(str(each.locate_file(""))))
        for file in each.files:
            source = Path(str(file.locate()))
            # Scripts lie outside the folder of packages; of the rest a file may have been removed since.
            if file.parts[0] == ".." or _NOT_OF_PACKAGES.search(str(file)) or not source.is_file():
                continue
            layer.add_file(source, _SITE / file)
            if ".so" in source.suffixes:
                extensions.append(source)
    layer.add_libraries(extensions, {site.resolve(): _SITE for site in sites})
